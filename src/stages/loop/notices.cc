#include "stages/loop/notices.h"

#include "base/log.h"
#include "base/utf8.h"
#include "wire/limits.h"

namespace millrace::loop {

void Notices::add_any(Notice notice) {
  if (!context_.is_member) return;
  if (waiting_.size() >= kMaxNotices) {
    ++context_.counters.lost_notices;
    waiting_.pop_front();
  }
  waiting_.push_back(std::move(notice));
  flush();
}

void Notices::reply(uint64_t command, const Result<std::string>& text, wire::WeightsReply weights) {
  const std::size_t most = text.ok() ? wire::kMaxTextBytes : wire::kMaxErrorBytes;
  const std::string message = utf8_repair(text.ok() ? *text : text.status().message());
  add(wire::Message(wire::AdminReply{.id = command,
                                     .stage = context_.stage(),
                                     .code = text.ok() ? StatusCode::kOk : text.status().code(),
                                     .message = std::string(utf8_prefix(message, most)),
                                     .weights = weights}));
}

void Notices::flush() {
  while (!waiting_.empty()) {
    auto* chunk = std::get_if<wire::Chunk>(&waiting_.front());
    const Status status = chunk ? outgoing_.append({}, *chunk, 0)
                                : context_.env.coordinator->send(std::get<wire::Message>(waiting_.front()));
    if (is_refused_for_now(status)) return context_.retry_soon();
    if (!status.ok()) LOG_ERROR("{}: a notice cannot be sent: {}", context_.stage(), status.to_string());
    waiting_.pop_front();
  }
}

}  // namespace millrace::loop
