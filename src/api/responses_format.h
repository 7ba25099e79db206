// ResponsesFormat: the JSON of /v1/responses, in one and as numbered events.
//
// Owner: the Reply. Thread safety: as ReplyFormat.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/reply_format.h"
#include "api/response_store.h"
#include "api/responses_items.h"
#include "http/exchange.h"

namespace millrace::api {

class ResponsesFormat : public ReplyFormat {
 public:
  struct Facts {
    std::string id, model;        // of the answer, and of the model as the client calls it
    std::string request_members;  // api/responses_request.h
    // Takes the complete answer and the ids of its items, in the background also what it is before; empty: it is not
    // stored.
    std::function<void(std::string body, const std::vector<std::string>& items, Background state)> store;
    // Of an answer in the background: gets it as it is once the request was accepted. null: there is none.
    http::ResponderPtr client;
  };

  ResponsesFormat(Facts facts, const OutputView& view, TokenNames names)
      : facts_(std::move(facts)), items_(view, names) {}

  // response.created and response.in_progress.
  void opening(const ChoiceState& choice, EventWriter& out) override;
  void events(const ChoiceState& choice, EventWriter& out) override;
  std::string last_event() const override { return ""; }
  // `error`, and response.failed: some clients look for the one, some for the other.
  std::string error_event(const ApiError& error) const override;
  void accepted() override;
  http::Response error_response(const ApiError& error) const override;
  std::string choice(const ChoiceState& choice) override;
  std::string body(std::string choices, const wire::Usage& usage) override;

 private:
  // `finish`: null while it is under way. `error`: a JSON object or null.
  void append_response(std::string& out, const wire::Finish* finish, const wire::Usage& usage,
                       std::string_view error = "null") const;
  void write_response(std::string_view type, const ChoiceState& choice);
  void keep(const wire::Finish& finish, const wire::Usage& usage) const;

  std::string_view status_of(const wire::Finish* finish, bool failed) const;
  // Why an answer is incomplete; empty: it is not.
  std::string_view incomplete_reason(const wire::Finish& finish) const;

  const Facts facts_;
  const int64_t created_at_ = unix_seconds();
  ResponseItems items_;
  NumberedEvents events_;
  wire::Finish finish_;
  int64_t completed_at_ = 0;
  bool answered_ = false;  // in the background: the client has its id
};

}  // namespace millrace::api
