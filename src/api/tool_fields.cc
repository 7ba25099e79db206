#include "api/tool_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "api/text_parameters.h"
#include "api/tool_grammar.h"
#include "api/unserved_fields.h"
#include "text/tools/tool_call.h"

namespace millrace::api {
namespace {

enum class Choice : uint8_t { kNone, kAuto, kRequired, kNamed };

struct ToolChoice {
  Choice choice = Choice::kNone;
  std::string name;  // kNamed
};

Result<std::string> read_tool(const Json& tool, std::size_t i, std::set<std::string>& names, bool& strict) {
  const std::string where = fmt::format("tools[{}]", i);
  if (!tool.is_object()) return invalid_argument("{} is of type {}; wanted an object", where, json_type_name(tool));
  std::string type = "function", name;
  RETURN_IF_ERROR(json_read(tool, "type", type).with_prefix(where));
  if (type != "function") {
    return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted 'function'", where, type.substr(0, 64));
  }
  const Json* function = json_find(tool, "function");
  if (!function || !function->is_object()) return invalid_argument("{}.function is missing; wanted an object", where);
  RETURN_IF_ERROR(json_read(*function, "name", name).with_prefix(where + ".function"));
  RETURN_IF_ERROR(check_tool_name(name, where + ".function", names));
  const Json* parameters = json_find(*function, "parameters");
  if (parameters && !parameters->is_object()) {
    return invalid_argument("Tool {} function has invalid 'parameters' schema: it is of type {}; wanted an object", i,
                            json_type_name(*parameters));
  }
  bool is_strict = false;
  RETURN_IF_ERROR(json_read(*function, "strict", is_strict).with_prefix(where + ".function"));
  strict = strict || is_strict;
  return name;
}

// `strict`: whether one of them wants its schema kept.
Result<std::vector<std::string>> read_tools(const Json& body, bool& strict) {
  std::vector<std::string> names;
  const Json* tools = json_find(body, "tools");
  if (!tools) return names;
  if (!tools->is_array()) return invalid_argument("tools is of type {}; wanted an array", json_type_name(*tools));
  if (tools->size() > wire::kMaxTools) {
    return invalid_argument("tools has {} entries; wanted at most {}", tools->size(), wire::kMaxTools);
  }
  std::set<std::string> seen;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    ASSIGN_OR_RETURN(std::string name, read_tool((*tools)[i], i, seen, strict));
    names.push_back(std::move(name));
  }
  return names;
}

Result<ToolChoice> read_named_choice(const Json& given, const std::vector<std::string>& names) {
  const Json* function = json_find(given, "function");
  std::string type = "function", name;
  RETURN_IF_ERROR(json_read(given, "type", type).with_prefix("tool_choice"));
  if (type != "function" || !function || !function->is_object()) {
    return error(StatusCode::kUnsupported,
                 "tool_choice is an object of type '{}'; wanted none, auto, required or {{\"type\":\"function\","
                 "\"function\":{{\"name\":...}}}}",
                 type.substr(0, 64));
  }
  RETURN_IF_ERROR(json_read(*function, "name", name).with_prefix("tool_choice.function"));
  if (names.empty()) return invalid_argument("Tools cannot be empty if tool choice is set to a specific tool.");
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return invalid_argument("Tool '{}' not found in tools list.", name.substr(0, 64));
  }
  return ToolChoice{Choice::kNamed, std::move(name)};
}

Result<ToolChoice> read_choice(const Json& body, const std::vector<std::string>& names) {
  const Json* given = json_find(body, "tool_choice");
  const ToolChoice unset{names.empty() ? Choice::kNone : Choice::kAuto, ""};
  if (!given || *given == "auto") return unset;
  if (*given == "none") return ToolChoice{};
  if (given->is_object()) return read_named_choice(*given, names);
  if (*given != "required") {
    return invalid_argument("tool_choice is {}; wanted none, auto, required or a function by name",
                            given->is_string() ? "'" + given->get<std::string>().substr(0, 64) + "'"
                                               : fmt::format("of type {}", json_type_name(*given)));
  }
  if (names.empty()) return invalid_argument("Tools cannot be empty if tool choice is set to required.");
  return ToolChoice{Choice::kRequired, ""};
}

// separate_reasoning of SGLang, include_reasoning of vLLM, reasoning_format of llama.cpp.
Status read_reasoning(const Json& body, wire::OutputParsing& parsing, OutputView& view) {
  bool separate = true;
  RETURN_IF_ERROR(json_read(body, "separate_reasoning", separate));
  RETURN_IF_ERROR(json_read(body, "stream_reasoning", view.reasoning_streamed));
  RETURN_IF_ERROR(json_read(body, "include_reasoning", view.reasoning_shown));
  std::string format = "auto";
  RETURN_IF_ERROR(json_read(body, "reasoning_format", format));
  if (format != "auto" && format != "deepseek" && format != "none") {
    return invalid_argument("reasoning_format is '{}'; wanted auto, deepseek or none", format.substr(0, 64));
  }
  parsing.reasoning_inline = !separate || format == "none";
  view.reasoning_field = parsing.reasoning != wire::ReasoningDialect::kNone && !parsing.reasoning_inline;
  return ok_status();
}

Status set_grammar(wire::GrammarKind kind, std::string source, std::string field, wire::SamplingParams& sampling) {
  if (source.size() > wire::kMaxGrammarBytes) {
    return invalid_argument("tools have {} bytes of schemas; wanted at most {} where a call has to keep them",
                            source.size(), wire::kMaxGrammarBytes);
  }
  sampling.grammar = wire::GrammarSource{kind, std::move(source), std::move(field)};
  return ok_status();
}

// A grammar admits no tags and nothing but the call.
Status force_call(const Json& body, const std::string& text, const ModelFacts& model, const ToolChoice& choice,
                  bool one_call, wire::SamplingParams& sampling) {
  if (sampling.grammar) {
    return invalid_argument("tool_choice forces a call, and {} is set too; wanted one of them",
                            sampling.grammar->field);
  }
  if (sampling.ignore_eos) return invalid_argument("ignore_eos is true, and tool_choice forces a call; wanted false");
  const ForcedCall forced{choice.name, one_call || choice.choice == Choice::kNamed,
                          model.tool_dialect == wire::ToolDialect::kLlama3 ? "parameters" : "arguments"};
  return set_grammar(wire::GrammarKind::kJsonSchema, forced_call_schema(*json_find(body, "tools"), text, forced),
                     "tools", sampling);
}

// A free text, in which what begins as a call is one: where a tool is strict, or where the marker is a token, which
// stands for nothing else. Llama 3's objects have no marker. Beside a schema of the request the text is its document or
// calls; any other grammar of the request describes all of it.
Status guard_calls(const std::string& text, const ModelFacts& model, bool strict, wire::OutputParsing& parsing,
                   wire::SamplingParams& sampling) {
  const bool has_form = parsing.tools == wire::ToolDialect::kQwen || parsing.tools == wire::ToolDialect::kMistral;
  if (!has_form || !(strict || model.has_tool_token)) return ok_status();
  std::string field = "tools";
  std::optional<std::string> document;
  if (sampling.grammar) {
    if (sampling.grammar->kind != wire::GrammarKind::kJsonSchema) return ok_status();
    field = sampling.grammar->field + " beside tools";
    document = std::move(sampling.grammar->text);
  }
  parsing.guarded = true;
  return set_grammar(wire::GrammarKind::kStructuralTag,
                     guarded_calls(text, parsing.tools, document ? &*document : nullptr), std::move(field), sampling);
}

}  // namespace

Status check_tool_name(const std::string& name, const std::string& where, std::set<std::string>& names) {
  if (!is_tool_name(name)) {
    return invalid_argument("{}.name is '{}'; wanted 1 to {} letters, digits, '_', '-' or '.'", where,
                            name.substr(0, 64), wire::kMaxToolNameBytes);
  }
  if (names.insert(name).second) return ok_status();
  return invalid_argument("{}.name is '{}', as of an earlier one; wanted different names", where, name);
}

bool forces_call(const Json& body) {
  const Json* given = json_find(body, "tool_choice");
  return given && (*given == "required" || given->is_object());
}

Result<OutputView> read_output_fields(const Json& body, const std::string& text, const ModelFacts& model,
                                      wire::SamplingParams& sampling) {
  OutputView view;
  wire::OutputParsing parsing{.reasoning = model.reasoning_dialect};
  bool strict = false;
  ASSIGN_OR_RETURN(parsing.tool_names, read_tools(body, strict));
  ASSIGN_OR_RETURN(const ToolChoice choice, read_choice(body, parsing.tool_names));
  bool parallel = true;
  RETURN_IF_ERROR(json_read(body, "parallel_tool_calls", parallel));
  view.one_call = !parallel;
  RETURN_IF_ERROR(read_reasoning(body, parsing, view));
  // Reasoning that stays in the text is a part of it, and a document is all of the text.
  if (parsing.reasoning_inline && sampling.grammar && wire::is_document(sampling.grammar->kind)) {
    parsing.reasoning = wire::ReasoningDialect::kNone;
  }
  switch (choice.choice) {
    case Choice::kNone:
      parsing.tool_names.clear();
      break;
    case Choice::kAuto:
      parsing.tools = model.tool_dialect;
      if (parsing.tools == wire::ToolDialect::kNone) {
        return error(StatusCode::kUnsupported,
                     "tools is not supported with this model: its chat template has no known form of calls. Leave it "
                     "out, let tool_choice be none or force a call, or start the server with --tool-parser");
      }
      if (parsing.tools == wire::ToolDialect::kQwenXml) {
        ASSIGN_OR_RETURN(parsing.text_parameters, find_text_parameters(*json_find(body, "tools")));
      }
      RETURN_IF_ERROR(guard_calls(text, model, strict, parsing, sampling));
      break;
    case Choice::kRequired:
    case Choice::kNamed:
      parsing.tools = wire::ToolDialect::kJson;
      parsing.reasoning = wire::ReasoningDialect::kNone;
      parsing.guarded = true;
      if (!choice.name.empty()) parsing.tool_names = {choice.name};
      RETURN_IF_ERROR(force_call(body, text, model, choice, view.one_call, sampling));
      break;
  }
  view.parsed = !parsing.empty();
  if (view.parsed) sampling.parsing = std::move(parsing);
  return view;
}

Status refuse_tools(const Json& body) {
  RETURN_IF_ERROR(refuse_unless(body, "tools", Json::array()));
  const Json* choice = json_find(body, "tool_choice");
  if (!choice || *choice == "none" || *choice == "auto") return ok_status();
  return error(StatusCode::kUnsupported, "tool_choice is not supported; wanted \"none\" or nothing");
}

}  // namespace millrace::api
