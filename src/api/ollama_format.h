// OllamaFormat: the JSON of /api/chat and /api/generate, in one and as lines.
//
// Owner: the Reply. Thread safety: as ReplyFormat.
#pragma once

#include <string>
#include <string_view>

#include "api/ollama_error.h"
#include "api/reply_format.h"
#include "api/tool_fields.h"
#include "stages/engine.h"

namespace millrace::api {

class OllamaFormat : public ReplyFormat {
 public:
  struct Shape {
    OllamaEndpoint endpoint = OllamaEndpoint::kChat;
    std::string model;      // as the client calls it
    bool logprobs = false;  // those of each token stand beside its text
  };

  OllamaFormat(const Engine& engine, Shape shape, const OutputView& view)
      : engine_(engine), shape_(std::move(shape)), view_(view) {}

  StreamForm stream_form() const override { return StreamForm::kLines; }
  void events(const ChoiceState& choice, EventWriter& out) override;
  std::string last_event() const override { return ""; }
  std::string error_event(const ApiError& error) const override;
  std::string choice(const ChoiceState& choice) override;
  std::string body(std::string choices, const wire::Usage& usage) override;
  http::Response error_response(const ApiError& error) const override;

  // The answer to a request without a prompt, which asks that the model be loaded.
  static std::string loaded(const Shape& shape);

 private:
  // What of an answer is new; calls are complete.
  struct Fresh {
    std::string content, thinking, calls;
    bool empty() const { return content.empty() && thinking.empty() && calls.empty(); }
  };
  Fresh take(const ChoiceState& choice);
  void take_call(Fresh& fresh);
  void append_members(std::string& out, const Fresh& fresh, const ChoiceState* logprobs_of) const;

  const Engine& engine_;
  const Shape shape_;
  const OutputView view_;
  int calls_ = 0;
  bool skipped_ = false;          // the call under way is left out
  std::string name_, arguments_;  // of the call under way
};

}  // namespace millrace::api
