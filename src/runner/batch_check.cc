#include "runner/batch_check.h"

#include "kv/media_ids.h"

namespace millrace {

BatchCheck::BatchCheck(const RunnerFacts& facts)
    : facts_(facts), written_in_(static_cast<std::size_t>(facts.page_count), 0) {}

Status BatchCheck::check(const Batch& batch) {
  ++checks_;
  for (const PageCopy& copy : batch.copies) {
    Status status = check_copy(copy);
    if (!status.ok()) return status.with_prefix(fmt::format("step {}", batch.step));
  }
  for (const SequenceStep& sequence : batch.sequences) {
    Status status = check_sequence(sequence);
    if (!status.ok()) return status.with_prefix(fmt::format("step {}, request {}", batch.step, sequence.request.value));
  }
  return ok_status();
}

Status BatchCheck::check_copy(const PageCopy& copy) const {
  if (copy.page.value < 0 || copy.page.value >= facts_.page_count) {
    return invalid_argument("a copy of the page {}; wanted [0, {})", copy.page.value, facts_.page_count);
  }
  if (copy.host_page.value < 0 || copy.host_page.value >= facts_.host_page_count) {
    return invalid_argument("a copy of the host page {}; wanted [0, {})", copy.host_page.value, facts_.host_page_count);
  }
  return ok_status();
}

Status BatchCheck::check_sequence(const SequenceStep& sequence) {
  if (sequence.tokens.empty()) return invalid_argument("no tokens; wanted at least one");
  const int64_t end = int64_t{sequence.position} + static_cast<int64_t>(sequence.tokens.size());
  if (sequence.position < 0 || end > facts_.context_length) {
    return invalid_argument("positions [{}, {}); wanted [0, {})", sequence.position, end, facts_.context_length);
  }
  RETURN_IF_ERROR(check_tokens(sequence));
  return check_pages(sequence, end);
}

Status BatchCheck::check_tokens(const SequenceStep& sequence) const {
  const auto check_ids = [this](std::span<const int32_t> ids, const char* what, bool may_wait) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0 && ids[i] < facts_.vocab_size) continue;
      if (may_wait && ids[i] == kTokenInFlight && i + 1 == ids.size()) continue;
      return invalid_argument("the {} {}; wanted [0, {})", what, ids[i], facts_.vocab_size);
    }
    return ok_status();
  };
  if (sequence.row_state != nullptr && !facts_.takes_row_states)
    return invalid_argument("rows of a row source; wanted tokens alone");
  if (sequence.capture != nullptr) RETURN_IF_ERROR(check_capture(*sequence.capture));
  if (sequence.input == nullptr) {
    RETURN_IF_ERROR(check_ids(sequence.tokens, "token id", true));
  } else {
    RETURN_IF_ERROR(check_input(sequence));
  }
  RETURN_IF_ERROR(check_ids(sequence.generated, "generated id", false));
  RETURN_IF_ERROR(check_ids(sequence.score_targets, "id to score", false));
  const auto begin = int64_t{sequence.score_begin}, scored = static_cast<int64_t>(sequence.score_targets.size());
  if (scored > 0 && (begin < 0 || begin + scored > static_cast<int64_t>(sequence.tokens.size()))) {
    return invalid_argument("rows [{}, {}) to score; wanted [0, {})", begin, begin + scored, sequence.tokens.size());
  }
  return ok_status();
}

Status BatchCheck::check_capture(const RowCapture& capture) const {
  if (capture.layer < 1 || capture.layer > facts_.layers) {
    return invalid_argument("rows behind {} layers are wanted; wanted 1 to {}", capture.layer, facts_.layers);
  }
  if (capture.final_norm && capture.layer != facts_.layers) {
    return invalid_argument("normed rows behind {} layers are wanted; wanted behind {}", capture.layer, facts_.layers);
  }
  if (capture.sum) {
    if (capture.final_norm && std::cmp_equal(capture.sum->values.size(), facts_.hidden_size)) return ok_status();
    return invalid_argument("a sum of {} values of rows; wanted {}, behind the final norm", capture.sum->values.size(),
                            facts_.hidden_size);
  }
  for (const CapturedSpan& span : capture.spans) {
    const int64_t values = int64_t{span.rows} * facts_.hidden_size;
    if (capture.hidden_size == facts_.hidden_size && static_cast<int64_t>(span.values->size()) == values) continue;
    return invalid_argument("{} values for {} captured rows of {}; wanted rows of {}", span.values->size(), span.rows,
                            capture.hidden_size, facts_.hidden_size);
  }
  return ok_status();
}

// Rows of pictures, and no others, have media ids.
Status BatchCheck::check_input(const SequenceStep& sequence) const {
  const bool taken = facts_.takes_media || (facts_.takes_positions && sequence.input->spans.empty());
  if (!taken) return invalid_argument("a prompt with pictures; wanted tokens alone");
  for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
    const int32_t token = sequence.tokens[i];
    const MediaSpan* span = sequence.input->span_of(sequence.position + static_cast<int32_t>(i));
    if (span == nullptr) {
      const bool waits = token == kTokenInFlight && i + 1 == sequence.tokens.size();
      if (waits || (token >= 0 && token < facts_.vocab_size)) continue;
      return invalid_argument("the token id {}; wanted [0, {})", token, facts_.vocab_size);
    }
    if (!is_media_id(token)) return invalid_argument("the token id {} in a row of a picture; wanted its number", token);
    const bool sets_fit =
        span->features.sets == facts_.feature_sets || (facts_.takes_sound && span->features.sets == 1);
    if (span->features.hidden_size != facts_.hidden_size || !sets_fit) {
      return invalid_argument("features of {} x {}; wanted {} x {}", span->features.sets, span->features.hidden_size,
                              facts_.feature_sets, facts_.hidden_size);
    }
  }
  return ok_status();
}

Status BatchCheck::check_pages(const SequenceStep& sequence, int64_t end) {
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
