#include "text/json_value.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "text/jinja/error.h"

namespace millrace {
namespace {

using jinja::Value;

template <typename AnyJson>
// Recursion: the check of the depth comes first, so it is never deeper than the values of a template may be.
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

// Builds values while nlohmann reads; a stack of open arrays and objects.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return add(Value()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Value::integer(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Value::real(value)); }
  // nlohmann gives the string up to the receiver: it may be moved from.
  bool string(string_t& value) override { return add(Value::string(std::move(value), false)); }
  // Of the binary formats alone, which sax_parse() does not read here.
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    open_.push_back({std::make_shared<jinja::DictObject>(), {}, {}});
    return check_depth();
  }
  // Comes only inside of an object, so the innermost open one is an object.
  bool key(string_t& value) override {
    open_.back().key = Value::string(std::move(value), false);
    return true;
  }
  bool end_object() override {
    // Taken out before add(), which puts it into the one that is then the innermost.
    Value value = jinja::make_dict(std::move(open_.back().dict));
    open_.pop_back();
    return add(std::move(value));
  }
  bool start_array(std::size_t) override {
    open_.push_back({});
    return check_depth();
  }
  bool end_array() override {
    Value value = jinja::make_list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(value));
  }
  // The message of nlohmann quotes what the client sent, at length; the position is enough.
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    status_ = invalid_argument("malformed JSON at byte {}", position);
    return false;
  }

  // Why a function above gave false. nlohmann stops at the first false and does not call parse_error() for it.
  const Status& status() const { return status_; }
  Value take() { return std::move(root_); }

 private:
  struct Open {
    std::shared_ptr<jinja::DictObject> dict;  // null: an array
    std::vector<Value> items;
    Value key;
  };

  bool check_depth() {
    if (static_cast<int>(open_.size()) <= max_depth_) return true;
    status_ = invalid_argument("JSON nests more than {} deep", max_depth_);
    return false;
  }
  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().dict) {
      open_.back().dict->set(open_.back().key, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }

  int max_depth_;
  std::vector<Open> open_;
  Value root_;
  Status status_;
};

}  // namespace

Result<Value> json_to_value(const Json& json) { return convert_checked(json); }
Result<Value> json_to_value(const nlohmann::ordered_json& json) { return convert_checked(json); }

Result<Value> parse_json_value(std::string_view text, int max_depth) {
  Builder builder(max_depth < jinja::kMaxValueDepth ? max_depth : jinja::kMaxValueDepth - 1);
  try {
    bool parsed = Json::sax_parse(text.begin(), text.end(), &builder);
    if (!parsed) {
      return builder.status().ok() ? invalid_argument("malformed JSON") : builder.status();
    }
    return builder.take();
  } catch (const jinja::TemplateError& error) {
    return Status(error.code, error.message);
  } catch (const std::exception& error) {
    return invalid_argument("malformed JSON: {}", error.what());
  }
}

}  // namespace millrace
