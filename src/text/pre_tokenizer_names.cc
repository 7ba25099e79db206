// The pre-tokenizers that GGUF files name: patterns as the models' tokenizer.json files publish them.
#include <array>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/tokenizer_tables.h"

namespace millrace {
namespace {

constexpr int kMaxDepth = 8;

#define MILLRACE_BYTES R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})"
#define MILLRACE_SPLIT(pattern, behavior, invert) \
  R"({"type":"Split","pattern":{"Regex":")" pattern R"("},"behavior":")" behavior R"(","invert":)" invert "}"
#define MILLRACE_SEQUENCE(steps) R"({"type":"Sequence","pretokenizers":[)" steps "]}"

constexpr std::string_view kGpt2 = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
constexpr std::string_view kLlama3 = MILLRACE_SEQUENCE(MILLRACE_SPLIT(
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)",
    "Isolated", "false") "," MILLRACE_BYTES);
constexpr std::string_view kQwen2 = MILLRACE_SEQUENCE(MILLRACE_SPLIT(
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)",
    "Isolated", "false") "," MILLRACE_BYTES);
constexpr std::string_view kGpt4o = MILLRACE_SEQUENCE(MILLRACE_SPLIT(
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)",
    "Removed", "true") "," MILLRACE_BYTES);
constexpr std::string_view kTekken = MILLRACE_SEQUENCE(
    MILLRACE_SPLIT(R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|)"
                   R"([^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|)"
                   R"(\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+)",
                   "Isolated", "false") "," MILLRACE_BYTES);
// The ranges of the second pattern are CJK ideographs, hiragana and katakana.
constexpr std::string_view kDeepseek3 =
    MILLRACE_SEQUENCE(MILLRACE_SPLIT(R"(\\p{N}{1,3})", "Isolated", "false") "," MILLRACE_SPLIT(
        R"([\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+)", "Isolated",
        "false") "," MILLRACE_SPLIT(R"([!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|)"
                                    R"( ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+)",
                                    "Isolated", "false") "," MILLRACE_BYTES);
constexpr std::string_view kSmolLm = MILLRACE_SEQUENCE(
    R"({"type":"Digits","individual_digits":true},{"type":"ByteLevel","add_prefix_space":false,"use_regex":true})");

#undef MILLRACE_SEQUENCE
#undef MILLRACE_SPLIT
#undef MILLRACE_BYTES

constexpr std::array<PreTokenizerRules, 9> kRules = {{
    {.name = "gpt-2", .json = kGpt2},
    {.name = "llama-bpe", .json = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .json = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .json = kLlama3, .ignore_merges = true, .add_bos = true},
    {.name = "qwen2", .json = kQwen2, .nfc = true},
    {.name = "gpt-4o", .json = kGpt4o},
    {.name = "deepseek-v3", .json = kDeepseek3},
    {.name = "tekken", .json = kTekken, .ignore_merges = true, .add_bos = true},
    {.name = "smollm", .json = kSmolLm},
}};

// What a component does, spelled one way: steps in their order, without the fields that touch offsets alone. Empty
// where it has a part that no rule has.
std::string signature(const Json& json, int depth = 0) {
  if (json.is_null()) return "-";
  const Json* type = json.is_object() && depth < kMaxDepth ? json_find(json, "type") : nullptr;
  if (type == nullptr || !type->is_string()) return {};
  const auto flag = [&](const char* name, bool fallback) {
    const Json* value = json_find(json, name);
    return (value != nullptr && value->is_boolean() ? value->get<bool>() : fallback) ? '1' : '0';
  };
  const Json* list =
      json_find(json, *type == "Sequence" && json.contains("normalizers") ? "normalizers" : "pretokenizers");
  if (*type == "Sequence") {
    if (list == nullptr || !list->is_array()) return {};
    std::string out;
    for (const Json& item : *list) {
      const std::string part = signature(item, depth + 1);
      if (part.empty()) return {};
      out += part == "-" ? "" : part;
    }
    return out.empty() ? "-" : out;
  }
  if (*type == "NFC") return "nfc;";
  if (*type == "ByteLevel") return fmt::format("bytes {}{};", flag("add_prefix_space", true), flag("use_regex", true));
  if (*type == "Digits") return fmt::format("digits {};", flag("individual_digits", false));
  const Json* pattern = json_find(json, "pattern");
  const Json* regex = pattern != nullptr && pattern->is_object() ? json_find(*pattern, "Regex") : nullptr;
  const Json* behavior = json_find(json, "behavior");
  if (*type != "Split" || regex == nullptr || behavior == nullptr) return {};
  return fmt::format("split {} {} {};", regex->dump(), behavior->dump(), flag("invert", false));
}

std::string signature_of_text(std::string_view text) {
  const Result<Json> json = parse_json(text);
  return json.ok() ? signature(*json) : std::string();
}

}  // namespace

const PreTokenizerRules* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizerRules& rules : kRules) {
    if (rules.name == name) return &rules;
  }
  return nullptr;
}

const PreTokenizerRules* match_pre_tokenizer(std::string_view pre_tokenizer, std::string_view normalizer,
                                             bool ignore_merges) {
  const std::string wanted = signature_of_text(pre_tokenizer);
  const std::string normal = signature_of_text(normalizer);
  if (wanted.empty()) return nullptr;
  for (const PreTokenizerRules& rules : kRules) {
    if (signature_of_text(rules.json) != wanted || normal != (rules.nfc ? "nfc;" : "-")) continue;
    if (rules.ignore_merges == ignore_merges) return &rules;
  }
  return nullptr;
}

std::string known_pre_tokenizers() {
  std::string list;
  for (const PreTokenizerRules& rules : kRules) list += (list.empty() ? "" : ", ") + std::string(rules.name);
  return list;
}

}  // namespace millrace
