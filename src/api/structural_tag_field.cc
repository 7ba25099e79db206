#include "api/structural_tag_field.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kShownTypeBytes = 64;

std::string type_of(const OrderedJson& object) {
  const auto found = object.find("type");
  return found != object.end() && found->is_string() ? found->get<std::string>().substr(0, kShownTypeBytes) : "";
}

Result<OrderedJson> read_tag(const OrderedJson& tag, const std::string& where) {
  if (!tag.is_object()) return invalid_argument("{} is no object; wanted one", where);
  const auto content = tag.find("content");
  if (content == tag.end() || !content->is_object()) {
    return invalid_argument("{}.content is missing; wanted an object", where);
  }
  if (type_of(*content) != "json_schema" || !content->contains("json_schema")) {
    return error(StatusCode::kUnsupported, "{}.content.type is '{}'; wanted json_schema, with a schema in json_schema",
                 where, type_of(*content));
  }
  OrderedJson out = OrderedJson::object();
  for (const char* key : {"begin", "end"}) {
    if (tag.contains(key)) out[key] = tag[key];
  }
  out["schema"] = (*content)["json_schema"];
  return out;
}

// Of XGrammar's formats, the one that tool calls need.
Result<OrderedJson> read_format(const OrderedJson& format, const std::string& where) {
  if (!format.is_object() || type_of(format) != "triggered_tags") {
    return error(StatusCode::kUnsupported, "{}.type is '{}'; wanted triggered_tags", where,
                 format.is_object() ? type_of(format) : "");
  }
  for (const char* key : {"at_least_one", "stop_after_first"}) {
    if (const auto given = format.find(key); given != format.end() && *given != false && !given->is_null()) {
      return error(StatusCode::kUnsupported, "{}.{} is not supported; wanted false or nothing", where, key);
    }
  }
  OrderedJson out = OrderedJson::object();
  if (format.contains("triggers")) out["triggers"] = format["triggers"];
  const auto tags = format.find("tags");
  if (tags == format.end() || !tags->is_array()) return invalid_argument("{}.tags is missing; wanted a list", where);
  out["structures"] = OrderedJson::array();
  for (std::size_t i = 0; i < tags->size(); ++i) {
    ASSIGN_OR_RETURN(OrderedJson tag, read_tag((*tags)[i], fmt::format("{}.tags[{}]", where, i)));
    out["structures"].push_back(std::move(tag));
  }
  return out;
}

}  // namespace

Result<std::string> structural_tag_source(const OrderedJson& given, const std::string& name) {
  if (!given.is_object()) return invalid_argument("{} is no object; wanted one", name);
  if (const std::string type = type_of(given); !type.empty() && type != "structural_tag") {
    return invalid_argument("{}.type is '{}'; wanted structural_tag", name, type);
  }
  if (const auto format = given.find("format"); format != given.end()) {
    ASSIGN_OR_RETURN(const OrderedJson source, read_format(*format, name + ".format"));
    return source.dump();
  }
  OrderedJson out = OrderedJson::object();
  for (const char* key : {"triggers", "structures"}) {
    if (given.contains(key)) out[key] = given[key];
  }
  return out.dump();
}

}  // namespace millrace::api
