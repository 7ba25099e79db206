#include "runner/chain_traces.h"

#include <algorithm>

namespace millrace {

void ChainTraces::begin(ReqId request) {
  const std::lock_guard lock(mutex_);
  requests_.try_emplace(request);
  any_ = true;
}

std::vector<RangeFigures> ChainTraces::end(ReqId request) {
  const std::lock_guard lock(mutex_);
  auto found = requests_.extract(request);
  any_ = !requests_.empty();
  if (found.empty()) return {};
  std::erase_if(found.mapped(), [](const RangeFigures& range) { return range.end_ns == 0; });
  return std::move(found.mapped());
}

void ChainTraces::count(const wire::LayerStep& part) {
  const int64_t now_ns = wall_clock_ns();
  const int64_t row_bytes = int64_t{part.rows.hidden_size} * static_cast<int64_t>(sizeof(float));
  std::vector<ReqId> traced;
  {
    const std::lock_guard lock(mutex_);
    for (const wire::LayerSequence& sequence : part.batch) {
      const auto found = requests_.find(sequence.request_id);
      if (found == requests_.end() || sequence.rows == 0) continue;
      traced.push_back(sequence.request_id);
      std::vector<RangeFigures>& ranges = found->second;
      if (ranges.empty()) ranges.resize(ranges_, {.begin_ns = now_ns});
      for (uint32_t range = 0; range < ranges_; ++range) {
        ranges[range].range = range;
        ranges[range].rows += sequence.rows;
        if (range > 0) ranges[range].row_bytes += sequence.rows * row_bytes;
      }
    }
  }
  if (!traced.empty()) in_flight_[{part.step, part.part}] = std::move(traced);
}

void ChainTraces::answered(uint64_t step, uint32_t part, std::span<const int64_t> compute_us) {
  const auto back = in_flight_.extract({step, part});
  if (back.empty()) return;
  const int64_t now_ns = wall_clock_ns();
  const std::lock_guard lock(mutex_);
  for (const ReqId request : back.mapped()) {
    const auto found = requests_.find(request);
    if (found == requests_.end()) continue;
    for (std::size_t range = 0; range < std::min(found->second.size(), compute_us.size()); ++range) {
      RangeFigures& figures = found->second[range];
      ++figures.parts;
      figures.compute_us += compute_us[range];
      figures.end_ns = now_ns;
    }
  }
}

}  // namespace millrace
