#include "api/ollama_history.h"

#include <fmt/format.h>

#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/routes.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_given(const OrderedJson& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && !value->is_null();
}

// The calls that have no result yet, in their sequence. A history may have thousands of them.
class OpenCalls {
 public:
  void add(const std::string& name, std::string id) {
    by_name_[name].push_back(ids_.size());
    all_.push_back(ids_.size());
    ids_.emplace_back(std::move(id));
  }
  // The id of the first one, or of the first one with the name; "": there is none. It is open no more.
  std::string take() { return take_first(all_); }
  std::string take(const std::string& name) {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? "" : take_first(found->second);
  }

 private:
  // A call is in two queues, and leaves the other one when it is the first there.
  std::string take_first(std::deque<std::size_t>& queue) {
    while (!queue.empty() && !ids_[queue.front()]) queue.pop_front();
    if (queue.empty()) return "";
    std::string id = *std::exchange(ids_[queue.front()], std::nullopt);
    queue.pop_front();
    return id;
  }

  std::vector<std::optional<std::string>> ids_;  // nullopt: it has its result
  std::deque<std::size_t> all_;
  std::unordered_map<std::string, std::deque<std::size_t>> by_name_;
};

class HistoryTranslator {
 public:
  explicit HistoryTranslator(const ModelFacts& model) : model_(model) {}

  Result<OrderedJson> translate(const OrderedJson& message, const std::string& where);

 private:
  Status add_calls(const OrderedJson& message, const std::string& where, OrderedJson& out);
  std::string id_of_result(const OrderedJson& message);

  const ModelFacts& model_;
  std::size_t calls_ = 0;
  OpenCalls open_;
};

// Arguments are an object in this dialect; the reader of the chat gives them the form of the template.
Status HistoryTranslator::add_calls(const OrderedJson& message, const std::string& where, OrderedJson& out) {
  const OrderedJson& given = message.at("tool_calls");
  if (!given.is_array()) {
    return invalid_argument("{}.tool_calls is of type {}; wanted an array", where, given.type_name());
  }
  OrderedJson calls = OrderedJson::array();
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string name = fmt::format("{}.tool_calls[{}]", where, i);
    if (!given[i].is_object() || !given[i].contains("function") || !given[i]["function"].is_object()) {
      return invalid_argument("{}.function is no object; wanted one with name and arguments", name);
    }
    OrderedJson call = given[i];
    OrderedJson& function = call["function"];
    if (!is_given(function, "name") || !function["name"].is_string()) {
      return invalid_argument("{}.function.name is no string; wanted one", name);
    }
    if (is_given(function, "arguments") && !function["arguments"].is_object()) {
      return invalid_argument("{}.function.arguments is of type {}; wanted an object", name,
                              function["arguments"].type_name());
    }
    function.erase("index");
    const bool named = is_given(call, "id") && call["id"].is_string();
    std::string id = named ? call["id"].get<std::string>() : fmt::format("call_{:09}", calls_);
    ++calls_;
    open_.add(function["name"].get_ref<const std::string&>(), id);
    calls.push_back({{"id", std::move(id)}, {"type", "function"}, {"function", std::move(function)}});
  }
  if (!calls.empty()) out["tool_calls"] = std::move(calls);
  return ok_status();
}

// That of the first call of its name that has no result yet; without a name, of the first call.
std::string HistoryTranslator::id_of_result(const OrderedJson& message) {
  for (const char* key : {"tool_call_id", "id"}) {
    if (is_given(message, key) && message[key].is_string()) return message[key];
  }
  const auto name = message.find("tool_name");
  const bool named = name != message.end() && name->is_string();
  return named ? open_.take(name->get_ref<const std::string&>()) : open_.take();
}

Result<OrderedJson> HistoryTranslator::translate(const OrderedJson& message, const std::string& where) {
  if (!message.is_object()) return message;  // which the reader of the chat refuses
  OrderedJson out = OrderedJson::object();
  if (message.contains("role")) out["role"] = message["role"];
  const OrderedJson text = is_given(message, "content") ? message["content"] : OrderedJson("");
  const OrderedJson* images = is_given(message, "images") ? &message["images"] : nullptr;
  ASSIGN_OR_RETURN(out["content"], ollama_content(text, images, where + ".images", model_));
  if (is_given(message, "thinking")) out["reasoning_content"] = message["thinking"];
  if (is_given(message, "tool_calls")) RETURN_IF_ERROR(add_calls(message, where, out));
  if (out.value("role", OrderedJson()) != "tool") return out;
  if (is_given(message, "tool_name")) out["name"] = message["tool_name"];
  if (std::string id = id_of_result(message); !id.empty()) out["tool_call_id"] = std::move(id);
  return out;
}

}  // namespace

Result<OrderedJson> ollama_content(const OrderedJson& text, const OrderedJson* images, const std::string& where,
                                   const ModelFacts& model) {
  if (images == nullptr) return text;
  if (!images->is_array()) return invalid_argument("{} is of type {}; wanted an array", where, images->type_name());
  if (images->empty()) return text;
  if (!text.is_string())
    return invalid_argument("{} is set beside a text of type {}; wanted a string", where, text.type_name());
  if (!model.media.pictures) {
    return error(StatusCode::kUnsupported, "{} has {} entries; wanted none: the model '{}' takes no pictures", where,
                 images->size(), model.name);
  }
  OrderedJson parts = OrderedJson::array();
  for (std::size_t i = 0; i < images->size(); ++i) {
    const OrderedJson& image = (*images)[i];
    if (!image.is_string()) {
      return invalid_argument("{}[{}] is of type {}; wanted a string of base64", where, i, image.type_name());
    }
    // What the picture is, its bytes decide.
    std::string url = "data:image/png;base64," + image.get_ref<const std::string&>();
    parts.push_back({{"type", "image_url"}, {"image_url", {{"url", std::move(url)}}}});
  }
  if (text != "") parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

Status translate_ollama_messages(const OrderedJson& messages, const ModelFacts& model, OrderedJson& chat) {
  if (!messages.is_array() || messages.size() > kMaxMessages) {  // which the reader of the chat refuses
    chat["messages"] = messages;
    return ok_status();
  }
  HistoryTranslator translator(model);
  OrderedJson& out = chat["messages"] = OrderedJson::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    ASSIGN_OR_RETURN(OrderedJson message, translator.translate(messages[i], fmt::format("messages[{}]", i)));
    out.push_back(std::move(message));
  }
  const OrderedJson& last = out.back();
  if (!last.is_object() || last.value("role", OrderedJson()) != "assistant") return ok_status();
  if (last.contains("tool_calls")) {
    return invalid_argument("messages[{}].tool_calls is set in the last message; wanted the results of the calls next",
                            out.size() - 1);
  }
  chat["continue_final_message"] = true;
  return ok_status();
}

}  // namespace millrace::api
