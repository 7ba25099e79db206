#include "wire/media_messages.h"

#include "base/xxh3.h"
#include "wire/checks.h"

namespace millrace::wire {

uint64_t features_checksum(const FeaturesPart& part) {
  FieldsChecksum sum;
  const uint64_t numbers[] = {part.job, static_cast<uint64_t>(part.rows), static_cast<uint64_t>(part.sets),
                              static_cast<uint64_t>(part.hidden_size), static_cast<uint64_t>(part.first)};
  sum.add(numbers, sizeof(numbers));
  sum.add(part.bytes.bytes);
  clear_upper_vectors();
  return sum.value();
}

Status validate(const EncodeMedia& message) {
  if (message.reply_to.empty()) return invalid_argument("reply_to is empty; wanted an endpoint");
  RETURN_IF_ERROR(check_traceparent(message.traceparent));
  if (message.media.bytes.bytes.empty()) return invalid_argument("the file has 0 bytes; wanted some");
  return ok_status();
}

Status validate(const FeaturesPart& message) {
  const std::size_t bytes = message.bytes.bytes.size();
  if (message.rows < 1 || message.sets < 1 || message.hidden_size < 1) {
    return invalid_argument("features of {} x {} x {}; wanted at least 1 each", message.sets, message.rows,
                            message.hidden_size);
  }
  if (message.sets > kMaxFeatureSets || message.hidden_size > kMaxFeatureWidth) {
    return invalid_argument("{} sets of {} values; wanted at most {} of {}", message.sets, message.hidden_size,
                            kMaxFeatureSets, kMaxFeatureWidth);
  }
  // No overflow: the sets and the width are bounded above, to 2^26 together, and rows has 31 bits.
  const int64_t all = int64_t{message.sets} * message.rows * message.hidden_size;
  const auto values = static_cast<int64_t>(bytes / sizeof(float));
  // By subtraction, as first + values may wrap; `values` is at most the size of a message.
  if (bytes % sizeof(float) != 0 || values < 1 || message.first < 0 || message.first > all - values) {
    return invalid_argument("{} bytes of features from value {} on; wanted f32 values inside [0, {})", bytes,
                            message.first, all);
  }
  return ok_status();
}

Status validate(const EncodeEnd& message) { return check_failure("failure", message.failure); }

}  // namespace millrace::wire
