#include "text/post_processor.h"

#include <nlohmann/json.hpp>

#include "text/component_json.h"
#include "text/normalizer.h"
#include "text/tokenizer.h"

namespace millrace {
namespace {

constexpr size_t kMaxTemplateTokens = 64;

Result<int32_t> token_id(const Json& value, std::string_view where) {
  if (!value.is_number_integer())
    return invalid_argument("{} is a {}; wanted an integer", where, json_type_name(value));
  const auto id = value.get<int64_t>();
  if (id < 0 || id >= kMaxVocab) return invalid_argument("{} is {}; wanted 0..{}", where, id, kMaxVocab - 1);
  return static_cast<int32_t>(id);
}

Status append_special(const Json& special, const Json& tokens, std::vector<int32_t>& out) {
  ASSIGN_OR_RETURN(const std::string name, required_string(special, "id"));
  const Json* entry = json_find(tokens, name);
  if (entry == nullptr || !entry->is_object())
    return invalid_argument("special_tokens has no \"{}\", which single names", name);
  ASSIGN_OR_RETURN(const Json* ids, required_array(*entry, "ids"));
  for (const Json& id : *ids) {
    if (out.size() >= kMaxTemplateTokens)
      return invalid_argument("single has over {} special tokens", kMaxTemplateTokens);
    ASSIGN_OR_RETURN(const int32_t value, token_id(id, "an id of special_tokens"));
    out.push_back(value);
  }
  return ok_status();
}

Status apply_template(const Json& json, PostProcessor& out) {
  ASSIGN_OR_RETURN(const Json* single, required_array(json, "single"));
  const Json* tokens = json_find(json, "special_tokens");
  if (tokens == nullptr || !tokens->is_object()) return invalid_argument("special_tokens is missing; wanted an object");
  std::vector<int32_t> before, after;
  bool seen = false;
  for (const Json& entry : *single) {
    if (!entry.is_object())
      return invalid_argument("an entry of single is a {}; wanted an object", json_type_name(entry));
    if (const Json* special = json_find(entry, "SpecialToken"); special != nullptr && special->is_object()) {
      RETURN_IF_ERROR(append_special(*special, *tokens, seen ? after : before));
    } else if (json_find(entry, "Sequence") != nullptr) {
      if (seen) return error(StatusCode::kUnsupported, "single names the sequence twice; wanted once");
      seen = true;
    } else {
      return invalid_argument("an entry of single is neither SpecialToken nor Sequence");
    }
  }
  if (!seen) return error(StatusCode::kUnsupported, "single does not name the sequence; wanted it once");
  out.prefix.insert(out.prefix.begin(), before.begin(), before.end());
  out.suffix.insert(out.suffix.end(), after.begin(), after.end());
  return ok_status();
}

// RobertaProcessing and BertProcessing: "cls" before, "sep" after, each a pair [text, id].
Status apply_pair(const Json& json, PostProcessor& out) {
  for (const char* key : {"cls", "sep"}) {
    ASSIGN_OR_RETURN(const Json* pair, required_array(json, key));
    if (pair->size() != 2) return invalid_argument("{} has {} entries; wanted [text, id]", key, pair->size());
    ASSIGN_OR_RETURN(const int32_t id, token_id((*pair)[1], key));
    if (key[0] == 'c') {
      out.prefix.insert(out.prefix.begin(), id);
    } else {
      out.suffix.push_back(id);
    }
  }
  return ok_status();
}

Status apply(const Json& json, int depth, PostProcessor& out) {
  ASSIGN_OR_RETURN(const std::string type, component_type(json));
  if (depth > kMaxComponentDepth) return invalid_argument("Sequences are nested deeper than {}", kMaxComponentDepth);
  if (type == "ByteLevel") return ok_status();  // it trims offsets, which are not used here
  if (type == "TemplateProcessing") return apply_template(json, out).with_prefix(type);
  if (type == "RobertaProcessing" || type == "BertProcessing") return apply_pair(json, out).with_prefix(type);
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* list, required_array(json, "processors"));
    if (list->size() > kMaxComponents) return invalid_argument("there are over {} components", kMaxComponents);
    for (const Json& item : *list) RETURN_IF_ERROR(apply(item, depth + 1, out));
    return ok_status();
  }
  return error(
      StatusCode::kUnsupported,
      "{}: this type is not known; wanted ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing or Sequence",
      type);
}

}  // namespace

Result<PostProcessor> PostProcessor::parse(const Json& json) {
  PostProcessor processor;
  if (!json.is_null()) RETURN_IF_ERROR(apply(json, 0, processor));
  return processor;
}

}  // namespace millrace
