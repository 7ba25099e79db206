// Pictures, videos and audio before they are encoded: from a file's header to the rows that it becomes, and from the
// placeholders in a prompt to the positions of those rows.
//
// A video is several items of a prompt, one for each group of frames that are seen together, with the time of the group
// as text before it. To everything behind, such a group is a picture.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "media/audio.h"
#include "media/log_mel.h"
#include "media/patches.h"
#include "media/video_plan.h"
#include "wire/generation.h"

namespace millrace {

// `detail: low`: as OpenAI has it, no more than this.
inline constexpr int64_t kLowDetailPixels = 512 * 512;

// What a model wants of a picture.
struct PictureFacts {
  PatchConfig patches;
  int32_t token_id = 0;  // the placeholder that the chat template writes, once for each picture
};

// What a model wants of a video.
struct VideoFacts {
  PatchConfig patches;  // min_pixels and max_pixels are of all frames together
  FrameSampling sampling;
  int32_t token_id = 0;              // the placeholder that the chat template writes, once for each video
  int32_t start_id = 0, end_id = 0;  // what stands around the rows of each group
};

// What a model wants of an audio.
struct AudioFacts {
  MelConfig mel;
  AudioLimits limits;
  int32_t token_id = 0;  // as above
};

// What of a prompt may be no text; nullopt: the model takes none.
struct MediaFacts {
  std::optional<PictureFacts> pictures;
  std::optional<AudioFacts> audio;
  std::optional<VideoFacts> videos;  // only beside pictures

  bool any() const { return pictures || audio; }
};

// All but `begin` and `field`, from the header alone: nothing is decoded. kInvalidArgument: no picture that is served,
// or a size out of range.
Result<wire::PromptMedia> read_picture(std::string bytes, bool low_detail, const PictureFacts& facts);

// The same of an audio. Formats whose header does not give the length are decoded once to count it.
Result<wire::PromptMedia> read_audio(std::string bytes, const AudioFacts& facts);

// Of all that decides the features: what it is, the size that it is brought to, the file.
std::string media_digest(const wire::PromptMedia& media);

// Digests that differ wherever the extra keys (cache salt and the like) do: such requests share no features, as they
// share no KV pages. How long a picture takes then does not show whether another one's client sent it before.
void salt_digests(std::string_view extra_key, std::vector<wire::PromptMedia>& media);

struct PromptItem {
  wire::PromptMedia media;
  std::string label = {};  // of a group of frames: its time, the text before its rows; "": no video
  bool continues = false;  // a further group of the video before it
};

using PromptMediaList = std::shared_ptr<const std::vector<PromptItem>>;

// The placeholders of a vocabulary; -1: none.
struct MediaTokens {
  int32_t picture = -1;
  int32_t audio = -1;
  int32_t video = -1;
  int32_t frames_start = -1, frames_end = -1;  // around each group of frames

  explicit MediaTokens(const MediaFacts& facts = {});
  int32_t of(const PromptItem& item) const {
    if (item.media.kind == wire::MediaKind::kAudio) return audio;
    return item.label.empty() ? picture : video;
  }
};

// The ids of a label. It stands between special tokens, so they depend on nothing else.
using LabelEncoder = std::function<Result<std::vector<int32_t>>(const std::string&)>;

// Each placeholder becomes as many as its picture or audio has rows; that of a video, for each group of frames, its
// label, frames_start, the rows and frames_end. kInvalidArgument where the template did not write one for each, in
// their sequence: the template's fault, since no text of a client is ever read as a placeholder. The errors of
// `encode`.
Result<std::vector<int32_t>> expand_media(const std::vector<int32_t>& ids, const PromptMediaList& media,
                                          const MediaTokens& tokens, const LabelEncoder& encode = {});

// Copies of `media` with `begin` set, for a prompt that expand_media() made.
std::vector<wire::PromptMedia> position_media(std::span<const int32_t> prompt, const PromptMediaList& media,
                                              const MediaTokens& tokens);

}  // namespace millrace
