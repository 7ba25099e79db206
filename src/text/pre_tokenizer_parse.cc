// Reading the "pre_tokenizer" of a tokenizer.json.
#include <nlohmann/json.hpp>

#include "text/component_json.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"

namespace millrace {
namespace {

// Source: openai/gpt-2, encoder.py; what ByteLevel with use_regex stands for.
constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

}  // namespace

Result<PreTokenizerChain> PreTokenizerChain::parse(const Json& json) {
  PreTokenizerChain chain;
  if (!json.is_null()) RETURN_IF_ERROR(chain.parse_into(json, 0));
  return chain;
}

Status PreTokenizerChain::parse_into(const Json& json, int depth) {
  ASSIGN_OR_RETURN(const std::string type, component_type(json));
  if (depth > kMaxComponentDepth) return invalid_argument("Sequences are nested deeper than {}", kMaxComponentDepth);
  if (steps_.size() >= kMaxComponents) return invalid_argument("there are over {} components", kMaxComponents);
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* list, required_array(json, "pretokenizers"));
    for (const Json& item : *list) RETURN_IF_ERROR(parse_into(item, depth + 1));
    return ok_status();
  }
  if (byte_level_) return error(StatusCode::kUnsupported, "{} comes after ByteLevel; wanted ByteLevel last", type);
  return parse_step(type, json).with_prefix(type);
}

Result<PreTokenizerChain::Behavior> PreTokenizerChain::parse_behavior(const Json& json) {
  ASSIGN_OR_RETURN(const std::string name, required_string(json, "behavior"));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return invalid_argument(
      "behavior is \"{}\"; wanted Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous", name);
}

Status PreTokenizerChain::parse_step(const std::string& type, const Json& json) {
  if (type == "ByteLevel") return parse_byte_level(json);
  if (type == "Metaspace") return parse_metaspace(json);
  if (type == "Split") {
    ASSIGN_OR_RETURN(const PatternText pattern, required_pattern(json, "pattern"));
    ASSIGN_OR_RETURN(Regex regex, pattern.is_regex ? Regex::compile(pattern.text) : Regex::literal(pattern.text));
    ASSIGN_OR_RETURN(const Behavior behavior, parse_behavior(json));
    ASSIGN_OR_RETURN(const bool invert, required_bool(json, "invert"));
    steps_.emplace_back(Split{std::move(regex), behavior, invert});
  } else if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool individual, required_bool(json, "individual_digits"));
    steps_.emplace_back(CharacterSplit{&is_numeric, individual ? Behavior::kIsolated : Behavior::kContiguous});
  } else if (type == "Punctuation") {
    Behavior behavior = Behavior::kIsolated;
    if (json_find(json, "behavior") != nullptr) {
      ASSIGN_OR_RETURN(behavior, parse_behavior(json));
    }
    steps_.emplace_back(CharacterSplit{&is_punctuation, behavior});
  } else if (type == "Whitespace") {
    steps_.emplace_back(Whitespace{});
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(CharacterSplit{&is_space, Behavior::kRemoved});
  } else {
    return error(StatusCode::kUnsupported,
                 "this type is not known; wanted ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace, "
                 "WhitespaceSplit or "
                 "Sequence");
  }
  return ok_status();
}

Status PreTokenizerChain::parse_byte_level(const Json& json) {
  ASSIGN_OR_RETURN(const bool add_prefix_space, required_bool(json, "add_prefix_space"));
  bool use_regex = true;
  RETURN_IF_ERROR(json_read(json, "use_regex", use_regex));
  if (add_prefix_space) steps_.emplace_back(ByteLevel{true});
  if (use_regex) {
    ASSIGN_OR_RETURN(Regex regex, Regex::compile(kGpt2Pattern));
    steps_.emplace_back(Split{std::move(regex), Behavior::kIsolated, false});
  }
  byte_level_ = true;
  return ok_status();
}

// The old form has add_prefix_space, the new one prepend_scheme; where both stand they must agree.
Status PreTokenizerChain::parse_metaspace(const Json& json) {
  Metaspace metaspace{.replacement = {}, .prepend = Prepend::kAlways, .split = true};
  ASSIGN_OR_RETURN(metaspace.replacement, required_character(json, "replacement"));
  RETURN_IF_ERROR(json_read(json, "split", metaspace.split));
  std::string scheme = "always";
  RETURN_IF_ERROR(json_read(json, "prepend_scheme", scheme));
  if (scheme == "first") {
    metaspace.prepend = Prepend::kFirst;
  } else if (scheme == "never") {
    metaspace.prepend = Prepend::kNever;
  } else if (scheme != "always") {
    return invalid_argument("prepend_scheme is \"{}\"; wanted always, first or never", scheme);
  }
  bool add_prefix_space = true;
  RETURN_IF_ERROR(json_read(json, "add_prefix_space", add_prefix_space));
  if (!add_prefix_space) {
    if (json_find(json, "prepend_scheme") != nullptr && scheme != "never") {
      return invalid_argument("add_prefix_space is false and prepend_scheme is \"{}\"; wanted \"never\"", scheme);
    }
    metaspace.prepend = Prepend::kNever;
  }
  steps_.emplace_back(std::move(metaspace));
  return ok_status();
}

}  // namespace millrace
