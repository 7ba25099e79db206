// LlamaFormat: the JSON of llama.cpp's /completion, in one and as events.
//
// Owner: the Reply. Thread safety: as ReplyFormat.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "api/reply_format.h"
#include "stages/engine.h"

namespace millrace::api {

class LlamaFormat : public ReplyFormat {
 public:
  struct Shape {
    std::string model;     // as the client calls it
    std::string settings;  // llama_settings()
    bool list = false;     // the answers of several prompts
    bool tokens = false;   // the ids of what is generated
    bool probabilities = false;
  };

  LlamaFormat(const Engine& engine, Shape shape) : engine_(engine), shape_(std::move(shape)) {}

  void events(const ChoiceState& choice, EventWriter& out) override;
  std::string last_event() const override { return ""; }
  std::string choice(const ChoiceState& choice) override;
  std::string body(std::string choices, const wire::Usage& usage) override;

 private:
  void append_part(std::string& out, const ChoiceState& choice) const;
  void append_end(std::string& out, const ChoiceState& choice) const;

  const Engine& engine_;
  const Shape shape_;
};

}  // namespace millrace::api
