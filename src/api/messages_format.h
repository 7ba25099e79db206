// MessagesFormat: the JSON of /v1/messages, in one and as events with names.
//
// Owner: the Reply. Thread safety: as ReplyFormat.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/messages_output.h"
#include "api/reply_format.h"

namespace millrace::api {

class MessagesFormat : public ReplyFormat {
 public:
  struct Names {
    std::string id, model;   // of the answer, and of the model as the client calls it
    std::string request_id;  // of the HTTP request
  };

  MessagesFormat(Names names, const OutputView& view, bool thinking_omitted)
      : names_(std::move(names)), view_(view), output_(view, thinking_omitted) {}

  // message_start, and a ping.
  void opening(const ChoiceState& choice, EventWriter& out) override;
  void events(const ChoiceState& choice, EventWriter& out) override;
  std::string last_event() const override;
  std::string error_event(const ApiError& error) const override;
  std::string choice(const ChoiceState& choice) override;
  std::string body(std::string choices, const wire::Usage& usage) override;
  http::Response error_response(const ApiError& error) const override;
  http::Headers headers() const override;

 private:
  const std::vector<wire::OutputEvent>& events_of(const ChoiceState& choice);
  std::string head() const;

  const Names names_;
  const OutputView view_;
  MessageOutput output_;
  std::vector<wire::OutputEvent> text_{1};  // of an answer that is text alone
};

}  // namespace millrace::api
