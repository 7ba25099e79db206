// Pictures before they are encoded: from a file's header to the rows that it becomes, and from the placeholders in a
// prompt to the positions of those rows.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "media/patches.h"
#include "wire/generation.h"

namespace millrace {

// `detail: low`: as OpenAI has it, no more than this.
inline constexpr int64_t kLowDetailPixels = 512 * 512;

// What a vision-language model wants of a picture.
struct PictureFacts {
  PatchConfig patches;
  int32_t token_id = 0;  // the placeholder that the chat template writes, once for each picture
};

// All but `begin` and `field`, from the header alone: nothing is decoded. kInvalidArgument: no picture that is served,
// or a size out of range.
Result<wire::PromptMedia> read_picture(std::string bytes, bool low_detail, const PictureFacts& facts);

using Pictures = std::shared_ptr<const std::vector<wire::PromptMedia>>;

// Each placeholder becomes as many as its picture has rows. kInvalidArgument where there are not as many placeholders
// as pictures, with both numbers: the template's fault, since no text of a client is ever read as a placeholder.
Result<std::vector<int32_t>> expand_pictures(const std::vector<int32_t>& ids, const Pictures& pictures,
                                             int32_t token_id);

// Copies of the pictures with `begin` set, for a prompt that expand_pictures() made.
std::vector<wire::PromptMedia> position_pictures(std::span<const int32_t> prompt, const Pictures& pictures,
                                                 int32_t token_id);

}  // namespace millrace
