// Pictures and audio before they are encoded: from a file's header to the rows that it becomes, and from the
// placeholders in a prompt to the positions of those rows.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "media/audio.h"
#include "media/log_mel.h"
#include "media/patches.h"
#include "wire/generation.h"

namespace millrace {

// `detail: low`: as OpenAI has it, no more than this.
inline constexpr int64_t kLowDetailPixels = 512 * 512;

// What a model wants of a picture.
struct PictureFacts {
  PatchConfig patches;
  int32_t token_id = 0;  // the placeholder that the chat template writes, once for each picture
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

  bool any() const { return pictures || audio; }
};

// All but `begin` and `field`, from the header alone: nothing is decoded. kInvalidArgument: no picture that is served,
// or a size out of range.
Result<wire::PromptMedia> read_picture(std::string bytes, bool low_detail, const PictureFacts& facts);

// The same of an audio. Formats whose header does not give the length are decoded once to count it.
Result<wire::PromptMedia> read_audio(std::string bytes, const AudioFacts& facts);

using PromptMediaList = std::shared_ptr<const std::vector<wire::PromptMedia>>;

// The placeholders of a vocabulary; -1: none.
struct MediaTokens {
  int32_t picture = -1;
  int32_t audio = -1;

  explicit MediaTokens(const MediaFacts& facts = {})
      : picture(facts.pictures ? facts.pictures->token_id : -1), audio(facts.audio ? facts.audio->token_id : -1) {}
  int32_t of(wire::MediaKind kind) const { return kind == wire::MediaKind::kAudio ? audio : picture; }
};

// Each placeholder becomes as many as its picture or audio has rows. kInvalidArgument where the template did not write
// one for each, in their sequence: the template's fault, since no text of a client is ever read as a placeholder.
Result<std::vector<int32_t>> expand_media(const std::vector<int32_t>& ids, const PromptMediaList& media,
                                          const MediaTokens& tokens);

// Copies of `media` with `begin` set, for a prompt that expand_media() made.
std::vector<wire::PromptMedia> position_media(std::span<const int32_t> prompt, const PromptMediaList& media,
                                              const MediaTokens& tokens);

}  // namespace millrace
