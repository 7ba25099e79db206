#include "text/tools/history_form.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kName = "millrace_probe";
constexpr std::string_view kArguments = R"({"quay": 42})";

bool renders(const ChatTemplate& chat_template, const ToolHistoryForm& form) {
  const char* id = form.short_ids ? "abcDEF123" : "call_0123456789abcdef01234567";
  OrderedJson function = {{"name", kName}};
  function["arguments"] = form.arguments_as_text ? OrderedJson(kArguments) : OrderedJson::parse(kArguments);
  OrderedJson call = {{"role", "assistant"}};
  call["content"] = form.null_content ? OrderedJson() : OrderedJson("");
  call["tool_calls"] = {{{"id", id}, {"type", "function"}, {"function", function}}};
  const OrderedJson tool = {{"type", "function"},
                            {"function", {{"name", "f"}, {"description", ""}, {"parameters", OrderedJson::object()}}}};
  const OrderedJson messages = {{{"role", "user"}, {"content", "a"}},
                                call,
                                {{"role", "tool"}, {"tool_call_id", id}, {"name", kName}, {"content", "b"}}};
  RenderOptions options;
  options.tools = ChatValue(OrderedJson::array({tool}));
  const auto rendered = chat_template.render(ChatValue(messages), options);
  if (!rendered.ok()) return false;
  std::string text;
  for (const Segment& segment : *rendered) text += segment.text;
  // A string of JSON that is written as JSON has its quotes escaped.
  return text.find(kName) != std::string::npos && text.find("\"quay\": 42") != std::string::npos;
}

ToolHistoryForm find_call_form(const ChatTemplate& chat_template) {
  for (const bool short_ids : {false, true}) {
    for (const bool as_text : {false, true}) {
      for (const bool null_content : {false, true}) {
        const ToolHistoryForm form{as_text, null_content, short_ids};
        if (renders(chat_template, form)) return form;
      }
    }
  }
  return {};
}

// A template names a role to compare with it. One that writes every role as it comes does not show whether the model
// knows it.
bool names_developer(const std::string& source) {
  return source.find("'developer'") != std::string::npos || source.find("\"developer\"") != std::string::npos;
}

}  // namespace

ToolHistoryForm find_tool_history_form(const ChatTemplate& chat_template) {
  ToolHistoryForm form = find_call_form(chat_template);
  form.developer_role = names_developer(chat_template.source(false)) && names_developer(chat_template.source(true));
  return form;
}

}  // namespace millrace
