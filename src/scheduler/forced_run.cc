#include "scheduler/forced_run.h"

#include <algorithm>

#include "scheduler/stop.h"

namespace millrace {
namespace {

// How many tokens may still be drawn for it, those in flight apart.
int32_t undrawn(const Sequence& sequence, int32_t context_length) {
  return std::min(sequence.sampling.max_tokens - sequence.drawn(), context_length - sequence.length());
}

}  // namespace

// Bans and logprobs need the rows' logits.
int32_t forced_limit(const Sequence& sequence, const SchedulerOptions& options, int32_t context_length) {
  if (!sequence.spec.grammar || sequence.row_state || sequence.spec.top_logprobs >= 0) return 0;
  if (sequence.drawn() < sequence.sampling.min_tokens) return 0;
  return std::max(0, std::min(options.max_forced_run, undrawn(sequence, context_length) - 1));
}

// Of what may still be drawn, the last one is not forced but drawn.
int32_t forced_rows(const Sequence& sequence, const SchedulerOptions& options, int32_t context_length, int32_t most) {
  const auto in_flight = static_cast<std::size_t>(sequence.pending);
  if (sequence.forced.size() <= in_flight) return 0;
  const auto run = static_cast<int32_t>(sequence.forced.size() - in_flight);
  const int32_t rows = std::min({run, most, undrawn(sequence, context_length) - 1});
  for (std::size_t i = 0; i < in_flight; ++i) {
    if (stops(sequence.sampling, options.eos_token_ids, sequence.forced[i])) return 0;
  }
  for (int32_t i = 0; i < rows; ++i) {
    const int32_t token = sequence.forced[in_flight + static_cast<std::size_t>(i)];
    if (stops(sequence.sampling, options.eos_token_ids, token)) return i;
  }
  return std::max(0, rows);
}

void append_forced(Sequence& sequence, int32_t rows) {
  if (rows == 0) return;
  const auto known = static_cast<std::size_t>(sequence.known());
  const int32_t behind_known = sequence.pending + rows;
  const auto run = static_cast<std::size_t>(behind_known);
  CHECK(rows > 0 && run <= sequence.forced.size());
  sequence.tokens.resize(known + run);
  std::copy_n(sequence.forced.begin(), run, sequence.tokens.begin() + static_cast<std::ptrdiff_t>(known));
  sequence.pending += rows;
  for (std::size_t i = sequence.known_generated.size(); i < static_cast<std::size_t>(sequence.drawn()); ++i) {
    sequence.known_generated.push_back(sequence.tokens[static_cast<std::size_t>(sequence.prompt_length) + i]);
  }
}

void pass_forced(Sequence& sequence, std::span<const int32_t> behind) {
  if (!sequence.forced.empty()) sequence.forced.erase(sequence.forced.begin());
  if (behind.size() > sequence.forced.size()) sequence.forced.assign(behind.begin(), behind.end());
}

}  // namespace millrace
