#include "runner/batch_check.h"

namespace millrace {

BatchCheck::BatchCheck(const RunnerFacts& facts)
    : facts_(facts), written_in_(static_cast<std::size_t>(facts.page_count), 0) {}

Status BatchCheck::check(const Batch& batch) {
  ++checks_;
  for (const SequenceStep& sequence : batch.sequences) {
    Status status = check_sequence(sequence);
    if (!status.ok()) return status.with_prefix(fmt::format("step {}, request {}", batch.step, sequence.request.value));
  }
  return ok_status();
}

Status BatchCheck::check_sequence(const SequenceStep& sequence) {
  if (sequence.tokens.empty()) return invalid_argument("no tokens; wanted at least one");
  const int64_t end = int64_t{sequence.position} + static_cast<int64_t>(sequence.tokens.size());
  if (sequence.position < 0 || end > facts_.context_length) {
    return invalid_argument("positions [{}, {}); wanted [0, {})", sequence.position, end, facts_.context_length);
  }
  for (const int32_t token : sequence.tokens) {
    if (token < 0 || token >= facts_.vocab_size) {
      return invalid_argument("the token id {}; wanted [0, {})", token, facts_.vocab_size);
    }
  }
  const int64_t pages_wanted = (end + facts_.page_size - 1) / facts_.page_size;
  if (static_cast<int64_t>(sequence.pages.size()) < pages_wanted) {
    return invalid_argument("{} pages for {} tokens; wanted {}", sequence.pages.size(), end, pages_wanted);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(pages_wanted); ++i) {
    const int32_t page = sequence.pages[i];
    if (page < 0 || page >= facts_.page_count) {
      return invalid_argument("the page {}; wanted [0, {})", page, facts_.page_count);
    }
    if (i < static_cast<std::size_t>(sequence.position / facts_.page_size)) continue;  // only read
    uint64_t& written_in = written_in_[static_cast<std::size_t>(page)];
    if (written_in == checks_) return invalid_argument("the page {} is written twice; wanted one writer", page);
    written_in = checks_;
  }
  return ok_status();
}

}  // namespace millrace
