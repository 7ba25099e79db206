#include "api/grammar_fields.h"

#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "api/structural_tag_field.h"
#include "api/unserved_fields.h"
#include "base/ordered_json.h"
#include "wire/limits.h"

namespace millrace::api {
namespace {

const Json kNeutralFalse = false;

// Where a field stands: its name for messages, "structured_outputs.json", and the JSON pointer to it.
struct FieldPath {
  std::string name;
  std::string pointer;

  FieldPath member(const char* key) const { return {name.empty() ? key : name + "." + key, pointer + "/" + key}; }
};

class GrammarReader {
 public:
  explicit GrammarReader(const std::string& text) : text_(text) {}

  Status read_openai(const Json& body, const FieldPath& root);
  Status read_native(const Json& params, const FieldPath& root);
  Status read_messages(const Json& body, const FieldPath& root);
  Status read_responses(const Json& body, const FieldPath& root);
  Status read_ollama(const Json& body, const FieldPath& root);
  Status finish(wire::SamplingParams& out);

 private:
  Status add(wire::GrammarKind kind, std::string source, const FieldPath& path);
  // A string with the source itself.
  Status read_source(const Json& object, const FieldPath& at, const char* key, wire::GrammarKind kind);
  // A schema: an object, or a string with its text.
  Status read_schema(const Json& object, const FieldPath& at, const char* key);
  Status read_choice(const Json& object, const FieldPath& at, const char* key);
  // Structural tags: an object, or a string with its text.
  Status read_tags(const Json& object, const FieldPath& at, const char* key);
  Status add_tags(const nlohmann::ordered_json& tags, const FieldPath& path);
  // {"type": "json_schema", "schema": ...}, which is all that Anthropic has. `openai`: or text, or json_object.
  Status read_output_format(const Json& object, const FieldPath& at, const char* key, bool openai = false);
  Status read_response_format(const Json& body, const FieldPath& root);
  Status read_structured_outputs(const Json& body, const FieldPath& root);

  const std::string& text_;
  std::vector<wire::GrammarSource> found_;
};

// Also before a text is parsed, which would take many times its bytes.
Status check_size(const std::string& source, const FieldPath& path) {
  if (source.empty()) return invalid_argument("{} is empty; wanted at least one character", path.name);
  if (source.size() <= wire::kMaxGrammarBytes) return ok_status();
  return invalid_argument("{} has {} bytes; wanted at most {}", path.name, source.size(), wire::kMaxGrammarBytes);
}

Status GrammarReader::add(wire::GrammarKind kind, std::string source, const FieldPath& path) {
  RETURN_IF_ERROR(check_size(source, path));
  found_.push_back({kind, std::move(source), path.name});
  return ok_status();
}

Status GrammarReader::read_source(const Json& object, const FieldPath& at, const char* key, wire::GrammarKind kind) {
  const Json* value = json_find(object, key);
  if (!value) return ok_status();
  const FieldPath path = at.member(key);
  if (!value->is_string()) {
    return invalid_argument("{} is of type {}; wanted a string", path.name, json_type_name(*value));
  }
  return add(kind, value->get<std::string>(), path);
}

Status GrammarReader::read_schema(const Json& object, const FieldPath& at, const char* key) {
  const Json* value = json_find(object, key);
  if (!value) return ok_status();
  const FieldPath path = at.member(key);
  if (value->is_string()) return add(wire::GrammarKind::kJsonSchema, value->get<std::string>(), path);
  if (!value->is_object()) {
    return invalid_argument("{} is of type {}; wanted an object or a string with one", path.name,
                            json_type_name(*value));
  }
  const auto ordered = parse_ordered_json(text_);
  return add(wire::GrammarKind::kJsonSchema, ordered.at(nlohmann::ordered_json::json_pointer(path.pointer)).dump(),
             path);
}

// One of several texts, as a regular expression.
Status GrammarReader::read_choice(const Json& object, const FieldPath& at, const char* key) {
  const Json* value = json_find(object, key);
  if (!value) return ok_status();
  const FieldPath path = at.member(key);
  if (!value->is_array() || value->empty()) {
    return invalid_argument("{} is {}; wanted an array of strings", path.name,
                            value->is_array() ? "empty" : fmt::format("of type {}", json_type_name(*value)));
  }
  std::string regex = "(";
  for (const Json& choice : *value) {
    if (!choice.is_string()) {
      return invalid_argument("{} has a {}; wanted strings", path.name, json_type_name(choice));
    }
    if (&choice != &value->front()) regex += '|';
    for (const char c : choice.get_ref<const std::string&>()) {
      const auto byte = static_cast<uint8_t>(c);
      if (byte < 0x20 || byte == 0x7F) {
        regex += fmt::format("\\x{:02x}", byte);
      } else {
        if (byte < 0x80 && !std::isalnum(byte)) regex += '\\';
        regex += c;
      }
    }
  }
  return add(wire::GrammarKind::kRegex, regex + ")", path);
}

Status GrammarReader::add_tags(const nlohmann::ordered_json& tags, const FieldPath& path) {
  ASSIGN_OR_RETURN(std::string source, structural_tag_source(tags, path.name));
  return add(wire::GrammarKind::kStructuralTag, std::move(source), path);
}

Status GrammarReader::read_tags(const Json& object, const FieldPath& at, const char* key) {
  const Json* value = json_find(object, key);
  if (!value) return ok_status();
  const FieldPath path = at.member(key);
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    RETURN_IF_ERROR(check_size(text, path));
    RETURN_IF_ERROR(parse_json(text).status().with_prefix(path.name));
    return add_tags(parse_ordered_json(text), path);
  }
  const auto ordered = parse_ordered_json(text_);
  return add_tags(ordered.at(nlohmann::ordered_json::json_pointer(path.pointer)), path);
}

// OpenAI's, with the two spellings of llama.cpp, where the schema stands beside the type.
Status GrammarReader::read_response_format(const Json& body, const FieldPath& root) {
  const Json* format = json_find(body, "response_format");
  if (!format) return ok_status();
  const FieldPath path = root.member("response_format");
  if (!format->is_object()) {
    return invalid_argument("response_format is of type {}; wanted an object", json_type_name(*format));
  }
  std::string type;
  RETURN_IF_ERROR(json_read(*format, "type", type).with_prefix("response_format"));
  if (type == "text") return ok_status();
  if (type == "structural_tag") return read_tags(body, root, "response_format");
  if (type != "json_object" && type != "json_schema") {
    return invalid_argument("response_format.type is '{}'; wanted text, json_object, json_schema or structural_tag",
                            type.substr(0, 64));
  }
  const std::size_t before = found_.size();
  RETURN_IF_ERROR(read_schema(*format, path, "schema"));
  if (const Json* inner = json_find(*format, "json_schema"); inner && type == "json_schema") {
    if (!inner->is_object()) {
      return invalid_argument("response_format.json_schema is of type {}; wanted an object", json_type_name(*inner));
    }
    bool strict = true;  // what is served is strict in any case
    RETURN_IF_ERROR(json_read(*inner, "strict", strict).with_prefix("response_format.json_schema"));
    RETURN_IF_ERROR(read_schema(*inner, path.member("json_schema"), "schema"));
  }
  if (found_.size() > before) return ok_status();
  if (type == "json_object") return add(wire::GrammarKind::kJsonSchema, R"({"type":"object"})", path);
  return invalid_argument("response_format.json_schema.schema is missing; wanted a JSON Schema");
}

Status GrammarReader::read_structured_outputs(const Json& body, const FieldPath& root) {
  const Json* wanted = json_find(body, "structured_outputs");
  if (!wanted) return ok_status();
  const FieldPath path = root.member("structured_outputs");
  if (!wanted->is_object()) {
    return invalid_argument("structured_outputs is of type {}; wanted an object", json_type_name(*wanted));
  }
  RETURN_IF_ERROR(refuse_unless(*wanted, "whitespace_pattern", nullptr).with_prefix("structured_outputs"));
  for (const char* key : {"disable_any_whitespace", "disable_additional_properties"}) {
    RETURN_IF_ERROR(refuse_unless(*wanted, key, kNeutralFalse).with_prefix("structured_outputs"));
  }
  const std::size_t before = found_.size();
  RETURN_IF_ERROR(read_schema(*wanted, path, "json"));
  RETURN_IF_ERROR(read_source(*wanted, path, "regex", wire::GrammarKind::kRegex));
  RETURN_IF_ERROR(read_choice(*wanted, path, "choice"));
  RETURN_IF_ERROR(read_source(*wanted, path, "grammar", wire::GrammarKind::kEbnf));
  RETURN_IF_ERROR(read_tags(*wanted, path, "structural_tag"));
  bool any_object = false;
  RETURN_IF_ERROR(json_read(*wanted, "json_object", any_object).with_prefix("structured_outputs"));
  if (any_object) {
    RETURN_IF_ERROR(add(wire::GrammarKind::kJsonSchema, R"({"type":"object"})", path.member("json_object")));
  }
  if (found_.size() > before) return ok_status();
  return invalid_argument(
      "structured_outputs has none of json, regex, choice, grammar, structural_tag and json_object; "
      "wanted one");
}

Status GrammarReader::read_openai(const Json& body, const FieldPath& root) {
  RETURN_IF_ERROR(read_response_format(body, root));
  RETURN_IF_ERROR(read_structured_outputs(body, root));
  RETURN_IF_ERROR(read_schema(body, root, "guided_json"));
  RETURN_IF_ERROR(read_source(body, root, "guided_regex", wire::GrammarKind::kRegex));
  RETURN_IF_ERROR(read_choice(body, root, "guided_choice"));
  RETURN_IF_ERROR(read_source(body, root, "guided_grammar", wire::GrammarKind::kEbnf));
  const Json* grammar = json_find(body, "grammar");
  if (grammar && *grammar != "") RETURN_IF_ERROR(read_source(body, root, "grammar", wire::GrammarKind::kEbnf));
  return read_native(body, root);
}

Status GrammarReader::read_output_format(const Json& object, const FieldPath& at, const char* key, bool openai) {
  const Json* format = json_find(object, key);
  if (!format) return ok_status();
  const FieldPath path = at.member(key);
  if (!format->is_object()) {
    return invalid_argument("{} is of type {}; wanted an object", path.name, json_type_name(*format));
  }
  std::string type;
  RETURN_IF_ERROR(json_read(*format, "type", type).with_prefix(path.name));
  if (openai && type == "text") return ok_status();
  if (openai && type == "json_object") return add(wire::GrammarKind::kJsonSchema, R"({"type":"object"})", path);
  if (type != "json_schema") {
    return invalid_argument("{}.type is '{}'; wanted {}json_schema", path.name, type.substr(0, 64),
                            openai ? "text, json_object or " : "");
  }
  if (!json_find(*format, "schema")) {
    return invalid_argument("{}.schema is missing; wanted a JSON Schema", path.name);
  }
  return read_schema(*format, path, "schema");
}

Status GrammarReader::read_messages(const Json& body, const FieldPath& root) {
  if (const Json* config = json_find(body, "output_config")) {
    RETURN_IF_ERROR(read_output_format(*config, root.member("output_config"), "format"));
  }
  RETURN_IF_ERROR(read_output_format(body, root, "output_format"));
  return read_openai(body, root);
}

Status GrammarReader::read_responses(const Json& body, const FieldPath& root) {
  if (const Json* text = json_find(body, "text")) {
    RETURN_IF_ERROR(read_output_format(*text, root.member("text"), "format", true));
  }
  return read_openai(body, root);
}

// "json", or a schema. An empty string is what some clients send for none.
Status GrammarReader::read_ollama(const Json& body, const FieldPath& root) {
  const Json* format = json_find(body, "format");
  if (format && format->is_object()) {
    RETURN_IF_ERROR(read_schema(body, root, "format"));
  } else if (format && *format == "json") {
    RETURN_IF_ERROR(add(wire::GrammarKind::kJsonSchema, R"({"type":"object"})", root.member("format")));
  } else if (format && *format != "") {
    return invalid_argument("format is {}; wanted \"json\" or an object with a JSON Schema",
                            format->is_string() ? "'" + format->get<std::string>().substr(0, 64) + "'"
                                                : fmt::format("of type {}", json_type_name(*format)));
  }
  return read_native(body, root);
}

Status GrammarReader::read_native(const Json& params, const FieldPath& root) {
  RETURN_IF_ERROR(read_schema(params, root, "json_schema"));
  RETURN_IF_ERROR(read_source(params, root, "regex", wire::GrammarKind::kRegex));
  RETURN_IF_ERROR(read_source(params, root, "ebnf", wire::GrammarKind::kEbnf));
  return read_tags(params, root, "structural_tag");
}

Status GrammarReader::finish(wire::SamplingParams& out) {
  if (found_.empty()) return ok_status();
  if (found_.size() > 1) {
    return invalid_argument("{} is set beside {}; wanted one of them", found_[1].field, found_[0].field);
  }
  if (out.ignore_eos) {
    return invalid_argument("ignore_eos is true beside {}; wanted false, for the end token ends what it describes",
                            found_[0].field);
  }
  out.grammar = std::move(found_[0]);
  return ok_status();
}

}  // namespace

Status read_grammar(const Json& body, const std::string& text, wire::SamplingParams& out) {
  GrammarReader reader(text);
  RETURN_IF_ERROR(reader.read_openai(body, {}));
  return reader.finish(out);
}

Status read_messages_grammar(const Json& body, const std::string& text, wire::SamplingParams& out) {
  GrammarReader reader(text);
  RETURN_IF_ERROR(reader.read_messages(body, {}));
  return reader.finish(out);
}

Status read_responses_grammar(const Json& body, const std::string& text, wire::SamplingParams& out) {
  GrammarReader reader(text);
  RETURN_IF_ERROR(reader.read_responses(body, {}));
  return reader.finish(out);
}

Status read_ollama_grammar(const Json& body, const std::string& text, wire::SamplingParams& out) {
  GrammarReader reader(text);
  RETURN_IF_ERROR(reader.read_ollama(body, {}));
  return reader.finish(out);
}

Status read_native_grammar(const Json& params, const std::string& text, const std::string& path,
                           wire::SamplingParams& out) {
  GrammarReader reader(text);
  RETURN_IF_ERROR(reader.read_native(params, {"", path}));
  return reader.finish(out);
}

}  // namespace millrace::api
