#include "stages/media/prompt_media.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "media/image.h"
#include "models/omni/audio_rows.h"

namespace millrace {
namespace {

std::span<const uint8_t> as_bytes(const std::string& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

// Of both, one behind the other.
std::string sha256(std::string_view head, std::string_view rest) {
  std::string out(wire::kMediaDigestBytes, '\0');
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  CHECK(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  CHECK(EVP_DigestUpdate(context.get(), head.data(), head.size()) == 1);
  CHECK(EVP_DigestUpdate(context.get(), rest.data(), rest.size()) == 1);
  CHECK(EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(out.data()), nullptr) == 1);
  return out;
}

// Of the picture as it is shown, from its header.
Result<ImageSize> read_size(const std::string& bytes) {
  ASSIGN_OR_RETURN(const ImageInfo info, read_image_header(as_bytes(bytes)));
  const ImageLimits limits;
  const int64_t pixels = int64_t{info.width} * info.height;
  if (info.width < 1 || info.height < 1 || pixels > limits.pixels) {
    return invalid_argument("the picture has {} x {} pixels; wanted at least 1 and at most {}", info.width, info.height,
                            limits.pixels);
  }
  if (info.orientation >= 5) return ImageSize{info.height, info.width};
  return ImageSize{info.width, info.height};
}

}  // namespace

std::string media_digest(const wire::PromptMedia& media) {
  const char* kind = media.kind == wire::MediaKind::kAudio ? "audio" : "image";
  return sha256(fmt::format("{} {} {} {}\n", kind, media.grid_t, media.grid_h, media.grid_w), media.bytes.bytes);
}

void salt_digests(std::string_view extra_key, std::vector<wire::PromptMedia>& media) {
  if (extra_key.empty()) return;
  for (wire::PromptMedia& one : media) one.digest.bytes = sha256(one.digest.bytes, extra_key);
}

Result<wire::PromptMedia> read_picture(std::string bytes, bool low_detail, const PictureFacts& facts) {
  if (bytes.size() > wire::kMaxMediaBytes) {
    return error(StatusCode::kTooLarge, "the picture has {} bytes; wanted at most {}", bytes.size(),
                 wire::kMaxMediaBytes);
  }
  ASSIGN_OR_RETURN(const ImageSize stored, read_size(bytes));
  PatchConfig patches = facts.patches;
  if (low_detail) patches.max_pixels = std::max(patches.min_pixels, std::min(patches.max_pixels, kLowDetailPixels));
  ASSIGN_OR_RETURN(const PatchGrid grid, patch_grid(stored, patches));
  wire::PromptMedia out;
  out.grid_t = grid.t;
  out.grid_h = grid.h;
  out.grid_w = grid.w;
  out.rows = out.grid_h * out.grid_w / (patches.merge_size * patches.merge_size);
  out.bytes.bytes = std::move(bytes);
  out.digest.bytes = media_digest(out);
  return out;
}

Result<wire::PromptMedia> read_audio(std::string bytes, const AudioFacts& facts) {
  if (bytes.size() > wire::kMaxMediaBytes) {
    return error(StatusCode::kTooLarge, "the audio has {} bytes; wanted at most {}", bytes.size(),
                 wire::kMaxMediaBytes);
  }
  ASSIGN_OR_RETURN(const AudioInfo info, read_audio_info(as_bytes(bytes), facts.limits));
  const int64_t frames = mel_frames(info.samples, facts.mel);
  const int64_t rows = audio_rows(frames);
  if (rows < 1) {
    return invalid_argument("the audio has {} samples of {} Hz; wanted some more: they make no row", info.samples,
                            kSpeechRate);
  }
  wire::PromptMedia out;
  out.kind = wire::MediaKind::kAudio;
  out.grid_t = static_cast<int32_t>(frames);
  out.grid_h = out.grid_w = 1;
  out.rows = static_cast<int32_t>(rows);
  out.bytes.bytes = std::move(bytes);
  out.digest.bytes = media_digest(out);
  return out;
}

MediaTokens::MediaTokens(const MediaFacts& facts) {
  if (facts.pictures) picture = facts.pictures->token_id;
  if (facts.audio) audio = facts.audio->token_id;
  if (!facts.videos) return;
  video = facts.videos->token_id;
  frames_start = facts.videos->start_id;
  frames_end = facts.videos->end_id;
}

namespace {

// Appends the rows of the item at `at`, and of those that continue it; the index of the next one.
Result<std::size_t> append_rows(const std::vector<PromptItem>& items, std::size_t at, const MediaTokens& tokens,
                                const LabelEncoder& encode, std::vector<int32_t>& out) {
  do {
    const PromptItem& item = items[at];
    const bool video = !item.label.empty();
    if (video) {
      ASSIGN_OR_RETURN(const std::vector<int32_t> label, encode(item.label));
      out.insert(out.end(), label.begin(), label.end());
      out.push_back(tokens.frames_start);
    }
    out.insert(out.end(), static_cast<std::size_t>(item.media.rows), tokens.of(item));
    if (video) out.push_back(tokens.frames_end);
  } while (++at < items.size() && items[at].continues);
  return at;
}

}  // namespace

Result<std::vector<int32_t>> expand_media(const std::vector<int32_t>& ids, const PromptMediaList& media,
                                          const MediaTokens& tokens, const LabelEncoder& encode) {
  if (media == nullptr || media->empty()) return ids;
  std::vector<int32_t> out;
  std::size_t seen = 0, placeholders = 0;
  for (const int32_t id : ids) {
    const bool placeholder = id >= 0 && (id == tokens.picture || id == tokens.audio || id == tokens.video);
    placeholders += placeholder ? 1 : 0;
    if (!placeholder || seen == media->size()) {
      out.push_back(id);
      continue;
    }
    const PromptItem& item = (*media)[seen];
    if (id != tokens.of(item)) {
      return invalid_argument("the chat template wrote the token {} for {}; wanted {}", id, item.media.field,
                              tokens.of(item));
    }
    ASSIGN_OR_RETURN(seen, append_rows(*media, seen, tokens, encode, out));
  }
  const auto wanted =
      static_cast<std::size_t>(std::ranges::count_if(*media, [](const PromptItem& item) { return !item.continues; }));
  if (placeholders != wanted) {
    return invalid_argument(
        "the chat template wrote {} placeholders for {} pictures, videos and audios; wanted one for each", placeholders,
        wanted);
  }
  return out;
}

std::vector<wire::PromptMedia> position_media(std::span<const int32_t> prompt, const PromptMediaList& media,
                                              const MediaTokens& tokens) {
  std::vector<wire::PromptMedia> out;
  if (media == nullptr) return out;
  std::size_t at = 0;
  for (const PromptItem& item : *media) {
    while (at < prompt.size() && prompt[at] != tokens.of(item)) ++at;
    out.push_back(item.media);
    out.back().begin = static_cast<int32_t>(at);
    at += static_cast<std::size_t>(item.media.rows);
  }
  CHECK(at <= prompt.size());
  return out;
}

}  // namespace millrace
