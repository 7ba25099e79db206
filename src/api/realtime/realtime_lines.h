// RealtimeLines: what the answers of a WebSocket have in common. Each event is a line, and there is no body.
//
// Owner: the Reply. Thread safety: as ReplyFormat.
#pragma once

#include <string>

#include "api/reply_format.h"

namespace millrace::api {

class RealtimeLines : public ReplyFormat {
 public:
  StreamForm stream_form() const final { return StreamForm::kLines; }
  std::string last_event() const final { return ""; }
  std::string choice(const ChoiceState& /*choice*/) final { return ""; }
  std::string body(std::string /*choices*/, const wire::Usage& /*usage*/) final { return ""; }
};

}  // namespace millrace::api
