// Prompts as the api gives them to the engine, and SharedPrompt: one that several requests have in common, such as the
// choices of `n`. It is held once however many share it, and the tokenizer encodes it once for all of them.
//
// Thread safety: a Prompt is a value; a SharedPrompt is a reference to one that never changes, held in any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "stages/media/media_rows.h"
#include "text/chat_template.h"

namespace millrace {

// Plain text, encoded as the tokenizer does it by default (with its BOS where the model wants one).
struct TextPrompt {
  std::string text;
  bool add_special_tokens = true;
};

// A text of parts that are trusted, whose special tokens count, and parts of a client, where they are plain text.
struct SegmentPrompt {
  std::vector<Segment> segments;
};

struct TokenPrompt {
  std::vector<int32_t> ids;
};

// A conversation for the model's chat template. Values are immutable and shared.
struct ChatPrompt {
  ChatValue messages;  // list of {role, content, ...}; contents are strings, or lists of parts for templates that take
                       // pictures
  ChatValue tools;     // list, or absent
  ChatValue template_kwargs;  // object of the names that the api allows, or absent
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  PromptMediaList media;         // of its messages, in their sequence; null: none
  MediaTokens media_tokens;      // the placeholders that the template writes for them
  std::size_t source_bytes = 0;  // of the JSON that it came from: its size, as far as limits on memory go
};

using Prompt = std::variant<TextPrompt, TokenPrompt, ChatPrompt, SegmentPrompt>;

// What it takes in memory, about.
std::size_t prompt_bytes(const Prompt& prompt);

class PromptEncoding;

class SharedPrompt {
 public:
  SharedPrompt() : SharedPrompt(Prompt()) {}
  SharedPrompt(Prompt prompt);  // NOLINT: a prompt of one request is given as it is
  template <typename P, typename = std::enable_if_t<std::is_constructible_v<Prompt, P> &&
                                                    !std::is_same_v<std::decay_t<P>, SharedPrompt>>>
  SharedPrompt(P&& prompt) : SharedPrompt(Prompt(std::forward<P>(prompt))) {}  // NOLINT: one of its alternatives

  const Prompt& operator*() const { return *prompt_; }
  // Of a conversation; null: it has none.
  PromptMediaList media() const {
    const auto* chat = std::get_if<ChatPrompt>(prompt_.get());
    return chat == nullptr ? nullptr : chat->media;
  }
  std::size_t bytes() const { return prompt_bytes(*prompt_); }
  // The tokenizer's: its ids, and the callbacks that wait for them.
  PromptEncoding& encoding() const { return *encoding_; }

 private:
  std::shared_ptr<const Prompt> prompt_;
  std::shared_ptr<PromptEncoding> encoding_;
};

}  // namespace millrace
