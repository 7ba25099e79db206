// DecoderChain and DecoderState: the "decoder" of a tokenizer.json, run as a stream.
//
// The chain is immutable and shared; a state belongs to one output text and one thread. Pushing all tokens and then
// finish() gives exactly what Hugging Face's decoder gives for the list of tokens, and every text on the way is valid
// UTF-8 that no later token changes. Once a Fuse (or ByteLevel, which fuses too) has been passed, the steps after it
// see one long token of which each text is a stretch known so far.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace {

class DecoderChain {
 public:
  // `json` may be null: tokens are then joined by spaces. Errors name the component's type and field; kUnsupported for
  // a chain that cannot be streamed.
  static Result<DecoderChain> parse(const Json& json);

  // What a token's text stands for alone: byte-level letters and <0x..> as bytes, U+2581 as a space where the chain
  // maps it.
  std::string token_bytes(std::string_view token) const;

 private:
  friend class DecoderState;
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Replace {
    std::string from;
    std::string to;
  };
  struct Strip {
    std::string content;  // one character
    size_t start;
    size_t stop;
  };
  struct Metaspace {
    std::string replacement;
    bool drops_first;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace>;

  Status parse_into(const Json& json, int depth);
  Status parse_step(const std::string& type, const Json& json);

  std::vector<Step> steps_;
  size_t fused_from_ = 0;  // steps from here on see one long token
  bool join_with_spaces_ = false;
};

class DecoderState {
 public:
  // `continues_text`: what is pushed follows other text, so the steps that touch a text's start do nothing.
  explicit DecoderState(const DecoderChain& chain, bool continues_text = false);

  // Appends to `out` what the token makes ready.
  void push(std::string_view token, std::string& out);
  void finish(std::string& out);

 private:
  struct Memory {
    std::string held;   // bytes whose meaning is open
    size_t count = 0;   // tokens seen, or characters stripped
    bool done = false;  // nothing is left to strip at the start
  };

  void decode_step(size_t step, std::string token, std::string& out);
  void decode_step(size_t step, const DecoderChain::ByteLevel&, std::string token, std::string& out);
  void decode_step(size_t step, const DecoderChain::ByteFallback&, std::string token, std::string& out);
  void decode_step(size_t step, const DecoderChain::Fuse&, std::string token, std::string& out);
  void decode_step(size_t step, const DecoderChain::Replace& replace, std::string token, std::string& out);
  void decode_step(size_t step, const DecoderChain::Strip& strip, std::string token, std::string& out);
  void decode_step(size_t step, const DecoderChain::Metaspace& metaspace, std::string token, std::string& out);
  void strip_fused(size_t step, const DecoderChain::Strip& strip, std::string text, std::string& out);
  void settle(size_t step, std::string& out);

  const DecoderChain* chain_;
  std::vector<Memory> memory_;
  bool first_ = true;
};

}  // namespace millrace
