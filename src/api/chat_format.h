// ChatFormat: the JSON of /v1/chat/completions, whole and in chunks.
//
// Owner: the Reply. Thread safety: as ReplyFormat.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/audio_output.h"
#include "api/chat_output.h"
#include "api/logprobs.h"
#include "api/reply_format.h"
#include "stages/engine.h"

namespace millrace::api {

class ChatFormat : public ReplyFormat {
 public:
  // `head`: of every body or chunk (openai_head). `audio`: of an answer that is spoken, which is no parsed output.
  ChatFormat(const Engine& engine, std::string head, ShownDetails shown, const OutputView& view,
             std::optional<ChatAudio> audio = {});

  void opening(const ChoiceState& choice, EventWriter& out) override;
  void events(const ChoiceState& choice, EventWriter& out) override;
  Status audio(std::span<const float> samples, EventWriter& out) override;
  Status finish(const ChoiceState& choice) override;
  void write_usage(std::string& out, const wire::Usage& usage) const override;
  std::string choice(const ChoiceState& choice) override;
  std::string body(std::string choices, const wire::Usage& usage) override;

 private:
  struct Chunk {
    int index = 0;
    bool opening = false;
    std::string_view delta{};              // its members
    const ChoiceState* details = nullptr;  // its tokens and their logprobs
    const wire::Finish* finish = nullptr;
    std::string_view reason{};
  };

  void append_logprobs(std::string& out, const ChoiceState* choice) const;
  void append_prompt_ids(std::string& out) const;
  void append_chunk(EventWriter& writer, const Chunk& chunk) const;

  const TokenNames names_;
  const ShownDetails shown_;
  const OutputView view_;
  std::vector<ChatOutput> outputs_;  // of a stream, one for each choice
  std::optional<ChatAudio> audio_;
  std::string prompt_logprobs_;
  const std::string head_;
};

}  // namespace millrace::api
