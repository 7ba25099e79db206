#include "stages/media/media_rows.h"

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
  // The header alone decides the rows of a prompt. A file whose pixels cannot be decoded is found later, by the
  // encoder.
  ASSIGN_OR_RETURN(const ImageInfo info, read_image_header(as_bytes(bytes)));
  const ImageLimits limits;
  const int64_t pixels = int64_t{info.width} * info.height;
  if (info.width < 1 || info.height < 1 || pixels > limits.pixels) {
    return invalid_argument("the picture has {} x {} pixels; wanted at least 1 and at most {}", info.width, info.height,
                            limits.pixels);
  }
  // EXIF: the orientations 5 to 8 turn the picture by a quarter, so its sides change.
  if (info.orientation >= 5) return ImageSize{info.height, info.width};
  return ImageSize{info.width, info.height};
}

}  // namespace

// The grid is in it: the same file at another size gives other features. And the kind, for a file that could be read as
// both.
std::string media_digest(const wire::PromptMedia& media) {
  const char* kind = media.kind == wire::MediaKind::kAudio ? "audio" : "image";
  return sha256(fmt::format("{} {} {} {}\n", kind, media.grid_t, media.grid_h, media.grid_w), media.bytes.bytes);
}

// The digest is the key of the encoder's cache: requests with different salts find nothing of each other there.
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
  // Not below the model's own least size.
  if (low_detail) patches.max_pixels = std::max(patches.min_pixels, std::min(patches.max_pixels, kLowDetailPixels));
  ASSIGN_OR_RETURN(const PatchGrid grid, patch_grid(stored, patches));
  wire::PromptMedia out;
  out.grid_t = grid.t;
  out.grid_h = grid.h;
  out.grid_w = grid.w;
  // The tower merges merge_size x merge_size patches into one row. A picture has one step in time.
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
  // From the number of samples: an audio's rows follow from its length, as a picture's from its size.
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
// A group without a label is a picture or an audio; a video's first group does not continue anything, its others do.
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
    // A model without videos has -1 for them, which no id of a prompt is.
    const bool placeholder = id >= 0 && (id == tokens.picture || id == tokens.audio || id == tokens.video);
    placeholders += placeholder ? 1 : 0;
    // One placeholder too many is counted and copied, so that the error below has the number of all.
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
  // A video has one placeholder, whatever the number of its groups.
  const auto wanted =
      static_cast<std::size_t>(std::ranges::count_if(*media, [](const PromptItem& item) { return !item.continues; }));
  if (placeholders != wanted) {
    return invalid_argument(
        "the chat template wrote {} placeholders for {} pictures, videos and audios; wanted one for each", placeholders,
        wanted);
  }
  return out;
}

// Searches what expand_media() has written: the ids between the items are text, of which none is a placeholder, so the
// first one behind an item begins the next.
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
