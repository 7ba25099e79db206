#include "text/json_value.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_events.h"
#include "text/jinja/error.h"

namespace millrace {
namespace {

using jinja::Value;

// Recursion: the check of the depth comes first, so it is never deeper than the values of a template may be.
template <typename AnyJson>
Value convert(const AnyJson& json, int depth) {
  if (depth > jinja::kMaxValueDepth) jinja::fail_limit("JSON nests more than {} deep", jinja::kMaxValueDepth);
  switch (json.type()) {
    case AnyJson::value_t::boolean:
      return Value::boolean(json.template get<bool>());
    case AnyJson::value_t::number_integer:
      return Value::integer(json.template get<int64_t>());
    // A template's integers have 128 bits, so both kinds of JSON's 64-bit integers are exact. Larger ones are floats in
    // nlohmann's parser already.
    case AnyJson::value_t::number_unsigned:
      return Value::integer(json.template get<uint64_t>());
    case AnyJson::value_t::number_float:
      return Value::real(json.template get<double>());
    case AnyJson::value_t::string:
      return Value::string(json.template get_ref<const std::string&>(), false);
    case AnyJson::value_t::array: {
      // Containers are made from the leaves up: a value is immutable, and its depth is known when it is made.
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(item, depth + 1));
      return jinja::make_list(std::move(items));
    }
    case AnyJson::value_t::object: {
      auto dict = std::make_shared<jinja::DictObject>();
      for (auto it = json.begin(); it != json.end(); ++it) {
        dict->set(Value::string(it.key(), false), convert(it.value(), depth + 1));
      }
      return jinja::make_dict(std::move(dict));
    }
    // null; and the kinds that the parser never makes.
    default:
      return Value();
  }
}

template <typename AnyJson>
Result<Value> convert_checked(const AnyJson& json) {
  try {
    return convert(json, 0);
  } catch (const jinja::TemplateError& error) {
    return Status(error.code, error.message);
  }
}

// Builds values without a tree between. Containers are made from the leaves up, as a value is immutable.
class ValueBuilder : public JsonHandler {
 public:
  Status null() override { return add(Value()); }
  Status boolean(bool value) override { return add(Value::boolean(value)); }
  Status negative(int64_t value) override { return add(Value::integer(value)); }
  Status natural(uint64_t value) override { return add(Value::integer(value)); }
  Status real(double value, const std::string& /*text*/) override { return add(Value::real(value)); }
  Status string(std::string&& value) override { return add(Value::string(std::move(value), false)); }
  Status start_object() override {
    open_.push_back({std::make_shared<jinja::DictObject>(), {}, {}});
    return ok_status();
  }
  Status key(std::string&& name) override {
    open_.back().key = Value::string(std::move(name), false);
    return ok_status();
  }
  Status end_object() override {
    // Taken out before add(), which puts it into the one that is then the innermost.
    Value value = jinja::make_dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(value));
  }
  Status start_array() override {
    open_.push_back({});
    return ok_status();
  }
  Status end_array() override {
    Value value = jinja::make_list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(value));
  }

  Value root;

 private:
  struct Open {
    std::shared_ptr<jinja::DictObject> dict;  // null: an array
    std::vector<Value> items;
    Value key;
  };

  Status add(Value value) {
    if (open_.empty()) {
      root = std::move(value);
    } else if (open_.back().dict) {
      open_.back().dict->set(open_.back().key, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return ok_status();
  }

  std::vector<Open> open_;
};

}  // namespace

Result<Value> json_to_value(const Json& json) { return convert_checked(json); }
Result<Value> json_to_value(const nlohmann::ordered_json& json) { return convert_checked(json); }

Result<Value> parse_json_value(std::string_view text, int max_depth) {
  ValueBuilder values;
  try {
    RETURN_IF_ERROR(read_json(text, values, std::min(max_depth, jinja::kMaxValueDepth - 1)));
  } catch (const jinja::TemplateError& error) {
    return Status(error.code, error.message);
  }
  return std::move(values.root);
}

}  // namespace millrace
