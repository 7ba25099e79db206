#include "wire/transfer_messages.h"

#include "base/utf8.h"
#include "base/xxh3.h"
#include "wire/checks.h"

namespace millrace::wire {
namespace {

Status check_id(const TransferId& id) {
  if (is_transfer_id(id.text)) return ok_status();
  return invalid_argument("id is \"{}\"; wanted 1 to {} letters, digits, '-' or '_'",
                          utf8_repair(id.text.substr(0, kMaxTransferIdBytes)), kMaxTransferIdBytes);
}

}  // namespace

// The reader compares it before the pages go into its cache, from which other requests would read damaged ones.
uint64_t kv_checksum(const KvPart& part) {
  FieldsChecksum sum;
  sum.add(part.id.text);
  const uint64_t numbers[] = {part.number,
                              static_cast<uint64_t>(part.first_page),
                              static_cast<uint64_t>(part.pages),
                              part.last ? uint64_t{1} : 0,
                              static_cast<uint64_t>(part.first_layer),
                              static_cast<uint64_t>(part.layers)};
  sum.add(numbers, sizeof(numbers));
  sum.add(part.bytes.bytes);
  sum.add(part.relay);
  sum.add(part.descriptor.bytes);
  clear_upper_vectors();
  return sum.value();
}

Status validate(const KvWant& message) {
  RETURN_IF_ERROR(check_id(message.id));
  if (message.reply_to.empty()) return invalid_argument("reply_to is empty; wanted an endpoint");
  if (message.format.page_size < 1) {
    return invalid_argument("page_size is {}; wanted at least 1", message.format.page_size);
  }
  const auto page = static_cast<std::size_t>(message.format.page_size);
  // Pages are shared whole or not at all: one that is full in part is computed by the reader.
  if (message.tokens.empty() || message.tokens.size() % page != 0) {
    return invalid_argument("{} tokens; wanted those of complete pages of {}", message.tokens.size(), page);
  }
  RETURN_IF_ERROR(check_traceparent(message.traceparent));
  RETURN_IF_ERROR(check_not_negative("from_page", message.from_page));
  if (static_cast<std::size_t>(message.from_page) < message.tokens.size() / page) return ok_status();
  return invalid_argument("from_page is {}; wanted below {}", message.from_page, message.tokens.size() / page);
}

Status validate(const KvPart& message) {
  RETURN_IF_ERROR(check_id(message.id));
  RETURN_IF_ERROR(check_not_negative("first_page", message.first_page));
  RETURN_IF_ERROR(check_not_negative("first_layer", message.first_layer));
  if (message.layers < 1) return invalid_argument("layers is {}; wanted at least 1", message.layers);
  const std::size_t bytes = message.bytes.bytes.size(), descriptor = message.descriptor.bytes.size();
  if (message.relay.empty()) {
    // How many bytes a page has only the receiver knows; at least one each, so that `pages` cannot make it reserve for
    // nothing.
    if (message.pages >= 1 && static_cast<int64_t>(bytes) >= message.pages && descriptor == 0) return ok_status();
    return invalid_argument("{} pages with {} bytes and a descriptor of {}; wanted at least 1 page, with bytes alone",
                            message.pages, bytes, descriptor);
  }
  if (!is_stage_name(message.relay))
    return invalid_argument("relay is \"{}\"; wanted a relay's name", utf8_repair(message.relay));
  if (message.pages >= 1 && bytes == 0 && descriptor > 0) return ok_status();
  return invalid_argument(
      "{} pages with {} bytes and a descriptor of {}; wanted at least 1 page, with a descriptor alone", message.pages,
      bytes, descriptor);
}

Status validate(const KvTaken& message) {
  RETURN_IF_ERROR(check_id(message.id));
  return message.reply_to.empty() ? invalid_argument("reply_to is empty; wanted an endpoint") : ok_status();
}

Status validate(const KvEnd& message) {
  RETURN_IF_ERROR(check_id(message.id));
  return check_failure("failure", message.failure);
}

}  // namespace millrace::wire
