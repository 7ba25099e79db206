// MediaCaptures: the hidden rows of pictures and audio that the talker of a spoken answer wants (runner/row_capture.h),
// kept from request to request. The rows of a picture depend on the whole prompt before it, so they are kept by a hash
// of that; where they are known, the prompt's KV may come from the prefix cache as it would for any request, and a
// conversation that goes on computes its new turn alone.
//
// Rows that are kept are never written again: a capture is of those that are not known.
//
// Owner: the worker `generate`. Thread safety: the worker's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "payload/value.h"
#include "runner/prompt_input.h"
#include "runner/row_capture.h"
#include "stages/media/byte_cache.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr std::size_t kDefaultCaptureCacheBytes = std::size_t{256} << 20;  // of rows that are kept

class MediaCaptures {
 public:
  // Rows of `hidden_size` floats behind `layer` layers of the model.
  MediaCaptures(int layer, int64_t hidden_size, std::size_t cache_bytes = kDefaultCaptureCacheBytes)
      : layer_(layer), hidden_size_(hidden_size), cache_(cache_bytes) {}

  // What one request wants: all spans of its prompt. Other weights make those anew that were known, until finish().
  struct Wanted {
    std::shared_ptr<RowCapture> capture;
    std::vector<std::string> keys;  // one for each of its spans
    uint64_t weight_version = 0;
  };
  // `prompt`: the ids of its text; what stands in the rows of a span does not matter. `input` has spans.
  Wanted begin(std::span<const int32_t> prompt, const PromptInput& input, uint64_t weight_version);
  // F32 [rows, hidden_size] of all spans, one behind the other, once the prompt was computed. `weight_version`: of the
  // first token; where it is another than at begin(), the rows are given and not kept.
  SharedTensor finish(const Wanted& wanted, uint64_t weight_version);
  // Forgets all rows that are kept.
  void flush() { cache_.clear(); }

  std::size_t cached_bytes() const { return cache_.bytes(); }
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  const int layer_;
  const int64_t hidden_size_;
  ByteCache<std::shared_ptr<std::vector<float>>> cache_;
  uint64_t found_ = 0;     // spans that were known,
  uint64_t captured_ = 0;  // and that were not
};

}  // namespace millrace
