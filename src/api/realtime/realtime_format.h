// RealtimeFormat: the events of one response, one line each, from response.output_item.added to response.done. Its
// items are a message, and calls of functions where the session has tools: each begins when the one before has ended.
//
// Owner: the Reply. Thread safety: as ReplyFormat.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "api/realtime/answer.h"
#include "api/realtime/realtime_lines.h"
#include "stages/engine.h"

namespace millrace::api {

class RealtimeFormat : public RealtimeLines {
 public:
  RealtimeFormat(std::shared_ptr<RealtimeAnswer> answer, const ModelFacts& model)
      : answer_(std::move(answer)), model_(model) {}

  void opening(const ChoiceState& choice, EventWriter& out) override;
  void events(const ChoiceState& choice, EventWriter& out) override;
  Status audio(std::span<const float> samples, EventWriter& out) override;
  std::string error_event(const ApiError& error) const override;
  http::Response error_response(const ApiError& error) const override;

 private:
  nlohmann::ordered_json event(std::string_view type, bool of_part) const;
  nlohmann::ordered_json part() const;
  void write(const nlohmann::ordered_json& event, EventWriter& out) const;
  void open_item(RealtimeItem::Kind kind, EventWriter& out);
  void write_item(const nlohmann::ordered_json& item, EventWriter& out) const;
  void add(const wire::OutputEvent& event, EventWriter& out);
  void add_text(std::string_view more, EventWriter& out);
  void begin_call(const std::string& name, EventWriter& out);
  void close_item(const std::string& item_status, EventWriter& out);
  void write_text_done(EventWriter& out) const;
  void write_end(const ChoiceState& choice, EventWriter& out);
  nlohmann::ordered_json usage_json(const wire::Usage& usage) const;
  void add_delta(std::string_view type, std::string_view delta, EventWriter& out) const;

  const std::shared_ptr<RealtimeAnswer> answer_;
  const ModelFacts& model_;
};

}  // namespace millrace::api
