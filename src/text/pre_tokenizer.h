// PreTokenizerChain: the "pre_tokenizer" of a tokenizer.json, which cuts a normalized text into words for the BPE
// model.
//
// Immutable after parse, shared by all threads; the buffers of a run live in PreTokenizerScratch. Words are handed on
// one by one as they are found, so memory does not grow with their number.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/regex.h"

namespace millrace {

struct PreTokenizerScratch {
  RegexScratch regex;
  std::vector<std::string> rewritten;  // one for each step
};

class PreTokenizerChain {
 public:
  using Sink = std::function<void(std::string_view word)>;

  // `json` may be null: then a text is one word. Errors name the component's type and field.
  static Result<PreTokenizerChain> parse(const Json& json);

  // Calls `sink` with each word. `at_start`: the text begins where the whole input begins (Metaspace's scheme "first"
  // asks). Views are valid during the call of `sink` only. Errors: kTooLarge from a regular expression.
  Status run(std::string_view text, bool at_start, PreTokenizerScratch& scratch, const Sink& sink) const;

  // The last step is ByteLevel: words are to be read as bytes.
  bool byte_level() const { return byte_level_; }

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend { kAlways, kFirst, kNever };
  struct Split {
    Regex pattern;
    Behavior behavior;
    bool invert;
  };
  struct ByteLevel {
    bool add_prefix_space;
  };
  struct Metaspace {
    std::string replacement;
    Prepend prepend;
    bool split;
  };
  struct CharacterSplit {
    bool (*matches)(char32_t);
    Behavior behavior;
  };
  struct Whitespace {};
  using Step = std::variant<Split, ByteLevel, Metaspace, CharacterSplit, Whitespace>;

  class Run;
  class Splitter;

  Status parse_into(const Json& json, int depth);
  Status parse_step(const std::string& type, const Json& json);
  Status parse_byte_level(const Json& json);
  Status parse_metaspace(const Json& json);
  static Result<Behavior> parse_behavior(const Json& json);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace millrace
