// MediaModel: what turns a picture into features and computes where the rows of a prompt with pictures stand. One
// implementation is a vision tower (stages/media/vision_model.h); tests bring another.
//
// Owner: a MediaEncoder. Thread safety: encode() on the encoder's thread alone; the other functions from any thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/function_ref.h"
#include "base/status.h"
#include "runner/prompt_input.h"
#include "wire/prompt_media.h"

namespace millrace {

class MediaModel {
 public:
  virtual ~MediaModel() = default;

  // kInvalidArgument: these bytes are no picture that can be decoded, or not of the grid that the header gave.
  // kCancelled where `keep_going`, which is asked every few milliseconds, returned false.
  virtual Result<MediaFeatures> encode(const wire::PromptMedia& media, FunctionRef<bool()> keep_going) = 0;

  // Of all bytes of the weights that it encodes with; 0: another process has them.
  virtual uint64_t weights_checksum() const { return 0; }

  // Fills `positions` and `delta`, of a prompt of so many rows.
  virtual void set_positions(int32_t rows, std::span<const wire::PromptMedia> media, PromptInput& input) const = 0;
};

}  // namespace millrace
