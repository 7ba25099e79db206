#include "api/chat_format.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {
namespace {

std::string content_of(std::string_view text) {
  std::string out = "\"content\":";
  json_append_string(out, text);
  return out;
}

void append_token_ids(std::string& out, const ChoiceState& choice) {
  out += ",\"token_ids\":";
  append_ids(out, choice.tokens);
}

// Clients read the key in the last chunk; null: no more of it.
void add_reasoning_key(std::string& delta) {
  constexpr std::string_view kKey = "\"reasoning_content\":";
  if (delta.starts_with(kKey)) return;
  if (!delta.empty()) delta += ',';
  delta += kKey;
  delta += "null";
}

}  // namespace

ChatFormat::ChatFormat(const Engine& engine, std::string head, ShownDetails shown, const OutputView& view,
                       std::optional<ChatAudio> audio)
    : names_{engine, shown.tokens_as_ids, shown.top_logprobs},
      shown_(std::move(shown)),
      view_(view),
      outputs_(shown_.choices_per_prompt, ChatOutput(view)),
      audio_(std::move(audio)),
      head_(std::move(head)) {}

void ChatFormat::opening(const ChoiceState& choice, EventWriter& out) {
  const std::string delta = audio_ ? audio_->opening() : R"("role":"assistant","content":"","refusal":null)";
  append_chunk(out, {.index = choice.index, .opening = true, .delta = delta});
}

void ChatFormat::events(const ChoiceState& choice, EventWriter& out) {
  CHECK(std::cmp_less(choice.index, outputs_.size()));
  ChatOutput& output = outputs_[static_cast<std::size_t>(choice.index)];
  std::vector<std::string> deltas = output.deltas(choice.events, choice.finish.has_value());
  const bool content = deltas.empty() && (!choice.text.empty() || (shown_.logprobs && !choice.logprobs.empty()) ||
                                          (shown_.token_ids && !choice.tokens.empty()));
  if (content) deltas.push_back(audio_ ? audio_->text(choice.text) : content_of(choice.text));
  const bool detailed = !deltas.empty();
  // The end stands on the last chunk of text, as in completions; behind audio, on one of its own.
  const bool closes = choice.finish.has_value();
  if (closes && audio_) deltas.push_back(audio_->closing());
  if (closes && (audio_ || deltas.empty())) deltas.emplace_back();
  if (closes && view_.reasoning_field) add_reasoning_key(deltas.back());
  for (std::size_t i = 0; i < deltas.size(); ++i) {
    Chunk chunk{.index = choice.index, .delta = deltas[i]};
    // The details of the tokens come once, on the first chunk.
    if (i == 0 && detailed) chunk.details = &choice;
    if (closes && i + 1 == deltas.size()) {
      chunk.finish = &*choice.finish;
      chunk.reason = output.finish_reason(*choice.finish);
    }
    append_chunk(out, chunk);
  }
}

Status ChatFormat::audio(std::span<const float> samples, EventWriter& out) {
  ASSIGN_OR_RETURN(const std::string delta, audio_->samples(samples));
  append_chunk(out, {.delta = delta});
  return ok_status();
}

Status ChatFormat::finish(const ChoiceState& choice) { return audio_ ? audio_->encode(choice.samples) : ok_status(); }

void ChatFormat::write_usage(std::string& out, const wire::Usage& usage) const {
  append_usage(out, usage, audio_ ? std::optional(audio_->tokens()) : std::nullopt);
}

std::string ChatFormat::choice(const ChoiceState& choice) {
  std::string out = fmt::format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",", choice.index);
  ChatOutput output(view_);
  if (audio_) {
    out += audio_->message(choice.text);
  } else {
    out += view_.parsed ? output.message(choice.events) : content_of(choice.text);
  }
  out += ",\"refusal\":null},\"logprobs\":";
  append_logprobs(out, &choice);
  append_end(out, &*choice.finish, output.finish_reason(*choice.finish));
  if (shown_.token_ids) append_token_ids(out, choice);
  if (shown_.prompt_logprobs && prompt_logprobs_.empty()) {  // those of all choices are the same
    prompt_logprobs_ = ",\"prompt_logprobs\":";
    append_prompt_logprobs(prompt_logprobs_, names_.engine, choice.prompt_logprobs);
  }
  return out + "}";
}

std::string ChatFormat::body(std::string choices, const wire::Usage& usage) {
  std::string out = std::move(choices.insert(0, head_));
  out += ']';
  append_prompt_ids(out);
  out += prompt_logprobs_;
  out += ",\"usage\":";
  write_usage(out, usage);
  out += '}';
  return out;
}

// Without a choice: none.
void ChatFormat::append_logprobs(std::string& out, const ChoiceState* choice) const {
  if (shown_.logprobs && choice) {
    append_chat_logprobs(out, names_, choice->logprobs);
  } else {
    out += "null";
  }
}

void ChatFormat::append_prompt_ids(std::string& out) const {
  if (!shown_.token_ids) return;
  out += ",\"prompt_token_ids\":";
  append_ids(out, shown_.prompt_ids.front());
}

void ChatFormat::append_chunk(EventWriter& writer, const Chunk& chunk) const {
  std::string& out = writer.begin();
  out += head_;
  out += "{\"index\":";
  append_integer(out, chunk.index);
  out += ",\"delta\":{";
  out += chunk.delta;
  out += "},\"logprobs\":";
  append_logprobs(out, chunk.details);
  append_end(out, chunk.finish, chunk.reason);
  if (shown_.token_ids && chunk.details) append_token_ids(out, *chunk.details);
  out += "}]";
  if (chunk.opening) append_prompt_ids(out);
  out += '}';
  writer.end();
}

}  // namespace millrace::api
