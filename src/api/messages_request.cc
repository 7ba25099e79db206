#include "api/messages_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "api/content_blocks.h"
#include "api/messages_history.h"
#include "api/messages_tools.h"
#include "api/sampling_fields.h"
#include "api/translated_chat.h"
#include "api/unserved_fields.h"
#include "base/ordered_json.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kLeastThinkingBudget = 1024;  // as at Anthropic's
constexpr std::string_view kEfforts[] = {"low", "medium", "high", "xhigh", "max"};

// Fields that a chat has under the same name.
constexpr const char* kSameFields[] = {"max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream"};

// The budget bounds the thinking alone, and here max_tokens and the context bound all of an answer: one that is no
// smaller than these changes nothing, and any other is not served.
Status check_budget(const Json& thinking, const Json& body, const ModelFacts& model) {
  std::optional<int64_t> budget, most;
  RETURN_IF_ERROR(
      read_integer(thinking, "budget_tokens", kLeastThinkingBudget, INT32_MAX, budget).with_prefix("thinking"));
  RETURN_IF_ERROR(read_integer(body, "max_tokens", 1, INT32_MAX, most));
  if (!budget || !most) return ok_status();
  const int64_t bound = std::min<int64_t>(*most - 1, model.context_length);
  if (*budget >= bound) return ok_status();
  return error(
      StatusCode::kUnsupported,
      "thinking.budget_tokens is {}, and thinking alone is not bounded here; wanted at least {}, as max_tokens "
      "and the context bound it, or thinking.type 'adaptive'",
      *budget, bound);
}

Status translate_thinking(const Json& body, const ModelFacts& model, OrderedJson& chat, bool& omitted) {
  const Json* thinking = json_find(body, "thinking");
  if (!thinking) return ok_status();
  if (!thinking->is_object()) {
    return invalid_argument("thinking is of type {}; wanted an object", json_type_name(*thinking));
  }
  std::string type, display = "summarized";
  RETURN_IF_ERROR(json_read(*thinking, "type", type).with_prefix("thinking"));
  RETURN_IF_ERROR(json_read(*thinking, "display", display).with_prefix("thinking"));
  if (display != "summarized" && display != "omitted") {
    return invalid_argument("thinking.display is '{}'; wanted summarized or omitted", display.substr(0, kShownBytes));
  }
  omitted = display == "omitted";
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    return error(StatusCode::kUnsupported, "thinking.type is '{}'; wanted enabled, adaptive or disabled",
                 type.substr(0, kShownBytes));
  }
  const auto choice = chat.find("tool_choice");
  const bool prefilled = chat.contains("continue_final_message");
  const bool forced = choice != chat.end() && (*choice == "required" || choice->is_object());
  if (type == "enabled") {
    RETURN_IF_ERROR(check_budget(*thinking, body, model));
    if (forced || prefilled) {
      return invalid_argument("thinking.type is 'enabled', and {}; wanted 'adaptive' or 'disabled'",
                              forced ? "tool_choice forces a call" : "the last of messages begins the answer");
    }
  }
  if (type == "adaptive" && (forced || prefilled)) return ok_status();  // nothing to think about
  chat["enable_thinking"] = type != "disabled";
  return ok_status();
}

// The format is read by read_messages_grammar().
Status translate_output_config(const Json& body, OrderedJson& chat) {
  const Json* config = json_find(body, "output_config");
  if (!config) return ok_status();
  if (!config->is_object()) {
    return invalid_argument("output_config is of type {}; wanted an object", json_type_name(*config));
  }
  RETURN_IF_ERROR(refuse_unless(*config, "task_budget", nullptr).with_prefix("output_config"));
  std::string effort;
  RETURN_IF_ERROR(json_read(*config, "effort", effort).with_prefix("output_config"));
  if (effort.empty()) return ok_status();
  if (std::find(std::begin(kEfforts), std::end(kEfforts), effort) == std::end(kEfforts)) {
    return invalid_argument("output_config.effort is '{}'; wanted low, medium, high, xhigh or max",
                            effort.substr(0, kShownBytes));
  }
  chat["reasoning_effort"] = effort;
  return ok_status();
}

}  // namespace

Result<ChatBody> translate_messages(const Json& body, const std::string& text, const ModelFacts& model,
                                    MediaParts& media) {
  RETURN_IF_ERROR(refuse_unserved_messages(body));
  RETURN_IF_ERROR(refuse_audio_output(body));
  const auto ordered = parse_ordered_json(text);
  OrderedJson chat = OrderedJson::object();
  RETURN_IF_ERROR(translate_history(body, ordered, media, chat));
  for (const char* key : kSameFields) copy_field(ordered, key, chat);
  copy_server_fields(ordered, chat);
  RETURN_IF_ERROR(translate_tools(body, ordered, chat));
  ChatBody out;
  RETURN_IF_ERROR(translate_thinking(body, model, chat, out.thinking_omitted));
  RETURN_IF_ERROR(translate_output_config(body, chat));
  out.text = chat.dump();
  return out;
}

}  // namespace millrace::api
