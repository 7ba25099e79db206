#include "wire/layer_messages.h"

#include <initializer_list>

#include "base/xxh3.h"
#include "wire/checks.h"

namespace millrace::wire {
namespace {

// The receiver uses it as an index into what it has of each range, so a limit holds before it knows how many there are.
Status check_range(const char* field, uint32_t range) {
  if (range < kMaxRanges) return ok_status();
  return invalid_argument("{} is {}; wanted a range below {}", field, range, kMaxRanges);
}

Status check_rows(const LayerRows& rows) {
  RETURN_IF_ERROR(check_not_negative("seq", rows.seq));
  RETURN_IF_ERROR(check_not_negative("hidden_size", rows.hidden_size));
  // No overflow: two factors of at most 2^31 - 1 and 4 stay below 2^64. Equal to the size of a blob, which has its own
  // limit, the product is small from here on.
  const uint64_t bytes = static_cast<uint64_t>(rows.seq) * static_cast<uint64_t>(rows.hidden_size) * sizeof(float);
  if (rows.payload_bytes != bytes || rows.bytes.bytes.size() != bytes) {
    return invalid_argument("payload_bytes is {} with {} bytes of rows; wanted {} for {} rows of {}",
                            rows.payload_bytes, rows.bytes.bytes.size(), bytes, rows.seq, rows.hidden_size);
  }
  return ok_status();
}

Status check_batch(const LayerStep& message) {
  // Of 64 bits: 65536 sequences of 2^31 - 1 rows would overflow 32.
  int64_t rows = 0;
  for (const LayerSequence& sequence : message.batch) {
    if (sequence.rows < 1) return invalid_argument("rows is {} in a sequence; wanted at least 1", sequence.rows);
    RETURN_IF_ERROR(check_not_negative("token_index", sequence.token_index));
    RETURN_IF_ERROR(check_not_negative("pages_kept", sequence.pages_kept));
    rows += sequence.rows;
  }
  // A step that passes a failure on keeps its batch and has no rows: the ranges behind take the page tables all the
  // same.
  if (rows != message.rows.seq && !message.failure) {
    return invalid_argument("the sequences have {} rows; wanted seq, {}", rows, message.rows.seq);
  }
  return ok_status();
}

// A position in time, height and width, as rotary embeddings of several dimensions take it.
constexpr std::size_t kPositionBytes = 3 * sizeof(float);

Status check_media(const LayerStep& message) {
  if (!message.media || message.failure) return ok_status();
  const LayerMedia& media = *message.media;
  const auto rows = static_cast<std::size_t>(message.rows.seq);
  const std::size_t positions = media.positions.bytes.size(), additions = media.additions.size() / 2;
  if (positions != rows * kPositionBytes) {
    return invalid_argument("positions has {} bytes; wanted {} for {} rows", positions, rows * kPositionBytes, rows);
  }
  if (media.additions.size() % 2 != 0) {
    return invalid_argument("additions has {} numbers; wanted two for each", media.additions.size());
  }
  // Behind check_rows(), which has refused a negative hidden_size.
  const std::size_t wanted = additions * static_cast<std::size_t>(message.rows.hidden_size) * sizeof(float);
  if (media.features.bytes.size() != wanted) {
    return invalid_argument("features has {} bytes; wanted {} for {} additions", media.features.bytes.size(), wanted,
                            additions);
  }
  for (std::size_t i = 0; i < media.additions.size(); i += 2) {
    const int32_t layer = media.additions[i], row = media.additions[i + 1];
    // The row is an index into this message's rows. Which layers there are the receiver knows, and checks.
    if (layer < 0 || row < 0 || row >= message.rows.seq) {
      return invalid_argument("an addition behind layer {} to row {}; wanted rows of 0 to {}", layer, row,
                              message.rows.seq - 1);
    }
  }
  return ok_status();
}

// Each list goes in with its length (FieldsChecksum), so that ids which move from one list to the next change the sum.
void add_numbers(FieldsChecksum& sum, std::initializer_list<uint64_t> numbers) {
  sum.add(numbers.begin(), numbers.size() * sizeof(uint64_t));
}

void add_ids(FieldsChecksum& sum, const std::vector<int32_t>& ids) {
  sum.add(ids.data(), ids.size() * sizeof(int32_t));
}

}  // namespace

// Of what decides the result. compute_us is a statistic, and a step with a failure has no rows to protect.
uint64_t layer_checksum(const LayerStep& step) {
  FieldsChecksum sum;
  add_numbers(sum, {step.chain_epoch, step.stage_from, step.step, step.part, step.weight_version, step.number});
  for (const LayerSequence& sequence : step.batch) {
    add_numbers(sum, {sequence.request_id.value, static_cast<uint64_t>(sequence.token_index),
                      static_cast<uint64_t>(sequence.rows), static_cast<uint64_t>(sequence.pages_kept)});
    add_ids(sum, sequence.pages);
  }
  add_ids(sum, step.copies);
  add_ids(sum, step.answer_rows);
  sum.add(step.rows.bytes.bytes);
  if (step.media) {
    sum.add(step.media->positions.bytes);
    add_ids(sum, step.media->additions);
    sum.add(step.media->features.bytes);
  }
  clear_upper_vectors();
  return sum.value();
}

uint64_t layer_checksum(const LayerResult& result) {
  FieldsChecksum sum;
  add_numbers(sum, {result.chain_epoch, result.stage_from, result.step, result.part});
  sum.add(result.rows.bytes.bytes);
  clear_upper_vectors();
  return sum.value();
}

Status validate(const LayerHello& message) {
  RETURN_IF_ERROR(check_range("stage_from", message.stage_from));
  // With one range there is no next one to send to.
  if (message.ranges < 2 || message.ranges > kMaxRanges) {
    return invalid_argument("ranges is {}; wanted 2 to {}", message.ranges, kMaxRanges);
  }
  RETURN_IF_ERROR(check_not_negative("layers_end", message.layers_end));
  return check_failure("failure", message.failure);
}

Status validate(const LayerStep& message) {
  RETURN_IF_ERROR(check_range("stage_from", message.stage_from));
  // No overflow: check_range() comes before. A message that came to the wrong range is found by its receiver.
  if (message.stage_to != message.stage_from + 1) {
    return invalid_argument("stage_to is {}; wanted {}, the range behind stage_from", message.stage_to,
                            message.stage_from + 1);
  }
  if (message.copies.size() % 3 != 0) {
    return invalid_argument("copies has {} numbers; wanted three for each copy", message.copies.size());
  }
  // Ascending, so each row is asked for once: the answers come back in this sequence, and their count is at most that
  // of the rows.
  int32_t least = 0;
  for (const int32_t row : message.answer_rows) {
    if (message.failure) break;
    if (row < least || row >= message.rows.seq) {
      return invalid_argument("answer_rows has {}; wanted ascending rows of {} to {}", row, least,
                              message.rows.seq - 1);
    }
    least = row + 1;
  }
  RETURN_IF_ERROR(check_failure("failure", message.failure));
  RETURN_IF_ERROR(check_batch(message));
  RETURN_IF_ERROR(check_rows(message.rows));
  return check_media(message);
}

Status validate(const LayerAlive& message) { return check_range("stage_from", message.stage_from); }

Status validate(const LayerResult& message) {
  RETURN_IF_ERROR(check_range("stage_from", message.stage_from));
  RETURN_IF_ERROR(check_failure("failure", message.failure));
  return check_rows(message.rows);
}

}  // namespace millrace::wire
