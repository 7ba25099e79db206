#include "scheduler/snapshot.h"

namespace millrace {
namespace {

using State = RequestSnapshot::State;

RequestSnapshot describe(const Sequence& sequence, State state, int64_t now_us) {
  RequestSnapshot out{.id = sequence.id,
                      .state = state,
                      .prompt_tokens = sequence.prompt_length,
                      .cached_tokens = sequence.cached.value_or(0),
                      .output_tokens = sequence.generated(),
                      .max_tokens = sequence.sampling.max_tokens,
                      .pages = sequence.pages.size(),
                      .priority = sequence.priority,
                      .retractions = sequence.retractions,
                      .age_s = static_cast<double>(now_us - sequence.accepted_us) * 1e-6};
  if (state == State::kPrefilling) {
    out.computed = sequence.computed;
    out.to_compute = sequence.prefill_end;
  }
  return out;
}

std::vector<RequestSnapshot> describe(const Requests& requests, int64_t now_us) {
  std::vector<RequestSnapshot> out;
  for (const Sequence* sequence : requests.running()) {
    if (out.size() >= kMaxSnapshotRequests) return out;
    const bool prefills = sequence->computed < sequence->prefill_end;
    out.push_back(describe(*sequence, prefills ? State::kPrefilling : State::kDecoding, now_us));
  }
  for (const Sequence* sequence : requests.waiting().oldest(kMaxSnapshotRequests - out.size())) {
    out.push_back(describe(*sequence, State::kQueued, now_us));
  }
  return out;
}

std::string map_pages(const SequenceMemory& memory) {
  const int32_t pages = memory.books().all;
  if (pages > kMaxMappedPages) return {};
  static constexpr char kLetters[] = {'f', 'h', 'c', 'i'};  // by PageState
  std::string map(static_cast<std::size_t>(pages), 'f');
  for (int32_t page = 0; page < pages; ++page) {
    map[static_cast<std::size_t>(page)] = kLetters[static_cast<std::size_t>(memory.pool().state({page}))];
  }
  mark_locked_pages(memory.cache(), 'r', map);
  return map;
}

}  // namespace

const char* request_state_name(State state) {
  switch (state) {
    case State::kQueued:
      return "queued";
    case State::kPrefilling:
      return "prefilling";
    case State::kDecoding:
      return "decoding";
  }
  return "?";
}

SchedulerSnapshot take_snapshot(const SchedulerFacts& facts, const Requests& requests, const SequenceMemory& memory,
                                const StepLog& steps, int64_t now_us) {
  return {.facts = facts,
          .requests = describe(requests, now_us),
          .steps = steps.steps(),
          .page_map = map_pages(memory),
          .cache = summarize(memory.cache())};
}

}  // namespace millrace
