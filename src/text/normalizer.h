// NormalizerChain: the "normalizer" of a tokenizer.json, applied to a text before it is cut into words.
//
// Immutable after parse, shared by all threads.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace millrace {

inline constexpr size_t kMaxComponents =
    64;  // normalizers, pre-tokenizers or decoders of one tokenizer, sequences flattened
inline constexpr int kMaxComponentDepth = 8;  // sequences inside sequences
inline constexpr size_t kMaxReplacementBytes = 256;

class NormalizerChain {
 public:
  // `json` may be null. Errors name the component's type and field.
  static Result<NormalizerChain> parse(const Json& json);

  bool empty() const { return steps_.empty(); }
  // Provenance follows the bytes where `text` is marked: what replaces untrusted text is untrusted, what is put before
  // it by the tokenizer is trusted. Errors: kTooLarge from a regular expression.
  Status apply(MarkedText& text, RegexScratch& scratch) const;

 private:
  struct Replace {
    Regex pattern;
    std::string literal;  // not empty when the pattern is a plain string
    std::string content;
  };
  struct Prepend {
    std::string content;
  };
  struct Strip {
    bool left;
    bool right;
  };
  struct Lowercase {};
  struct StripAccents {};
  using Step = std::variant<NormalForm, Replace, Prepend, Strip, Lowercase, StripAccents>;

  Status parse_into(const Json& json, int depth);
  Status parse_step(const std::string& type, const Json& json);
  static Status replace(const Replace& step, MarkedText& text, RegexScratch& scratch);

  std::vector<Step> steps_;
};

}  // namespace millrace
