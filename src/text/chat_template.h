// A model's chat template: messages in, a marked prompt out.
//
// The template is Jinja2 as Hugging Face transformers runs it (trim_blocks, lstrip_blocks, immutable sandbox, tojson,
// raise_exception, strftime_now, loop controls, generation blocks). Everything that came with the request is untrusted
// and stays so through every filter; the template's own text and the model's special tokens are trusted
// (text/segment.h).
//
// Ownership: a ChatTemplate is a cheap handle on an immutable parsed template. Thread safety: const methods may run in
// any number of threads at once. Everything is bounded by jinja::Limits; a violation is a Status that names the
// template line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/segment.h"

namespace millrace {

namespace jinja {
class Value;
class Template;
}  // namespace jinja
struct ChatTemplateFiles;

// Template files larger than this are refused.
inline constexpr size_t kMaxChatTemplateBytes = size_t{1} << 20;

// A value of the request as a template sees it. Cheap to copy, immutable, safe to share between threads.
//
// Key order reaches the prompt (`tool | tojson`), so it matters: parse() and the OrderedJson constructor keep the order
// in which the client wrote the keys, as transformers does; `Json` has sorted them already.
class ChatValue {
 public:
  ChatValue();                                    // absent: the template sees none
  ChatValue(const Json& json);                    // NOLINT: implicit by design. Keys are sorted.
  ChatValue(const nlohmann::ordered_json& json);  // NOLINT: implicit by design. Keys keep their order.
  explicit ChatValue(std::shared_ptr<const jinja::Value> value) : value_(std::move(value)) {}

  // Parses JSON text with keys in their order. kInvalidArgument names the byte offset; nesting is bounded by max_depth.
  static Result<ChatValue> parse(std::string_view json_text, int max_depth = kJsonMaxDepth);

  // A member of an object; absent where there is none (or this is no object).
  ChatValue get(std::string_view key) const;
  bool absent() const { return value_ == nullptr; }
  const std::shared_ptr<const jinja::Value>& value() const { return value_; }

 private:
  std::shared_ptr<const jinja::Value> value_;
};

struct RenderOptions {
  bool add_generation_prompt = true;
  // The model goes on writing the last message: what the template puts after that message's content is cut off.
  // Excludes add_generation_prompt.
  bool continue_final_message = false;
  ChatValue tools;      // a list of tool schemas, or absent
  ChatValue documents;  // a list of objects, or absent
  ChatValue extra;      // an object: further variables such as enable_thinking. The caller allow-lists its keys.
  // Special tokens as template variables, trusted: unset ones fall back to those read by load(), then stay undefined.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  // Seconds since the epoch for strftime_now (local time zone); the system clock when unset.
  std::optional<int64_t> now_unix_s;
};

class ChatTemplate {
 public:
  // `name` stands in error messages ("chat_template.jinja"). kInvalidArgument: "NAME, line 12: unexpected ..., wanted
  // ...".
  static Result<ChatTemplate> parse(std::string source, std::string_view name = "chat template");

  // Looks into `model_dir`: chat_template.jinja (with additional_chat_templates/tool_use.jinja), then
  // chat_template.json, then tokenizer_config.json's chat_template (a string, or a list of {name, template} with
  // "default" and "tool_use"). Special tokens are read from tokenizer_config.json. nullopt: the model has no template.
  static Result<std::optional<ChatTemplate>> load(const std::string& model_dir);

  // The same from what was found elsewhere (a GGUF file): main, tool_use and the special tokens.
  static Result<std::optional<ChatTemplate>> make(ChatTemplateFiles files);

  // `messages` is a list of objects. A message's role is trusted when it is one of kTrustedRoles; all else is
  // untrusted. kInvalidArgument: the template raised an exception, met a wrong type or an undefined value; kTooLarge:
  // over a limit.
  Result<std::vector<Segment>> render(const ChatValue& messages, const RenderOptions& options) const;

  // The source text that serves a request with or without tools.
  const std::string& source(bool with_tools = false) const;

 private:
  struct Parts;
  explicit ChatTemplate(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

// Words that some templates build special tokens from ('<|' + message.role + '|>').
inline constexpr std::string_view kTrustedRoles[] = {"system", "developer", "user", "assistant", "tool", "ipython"};

}  // namespace millrace
