#include "base/json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json_events.h"
#include "base/utf8.h"

namespace millrace {
namespace {

constexpr std::size_t kShownKeyBytes = 64;

// A tree in which no key stands twice; nlohmann's own reader keeps the last.
class TreeBuilder : public TreeHandler<Json> {
 public:
  Status start_object() override { return open(Json::object()); }
  Status key(std::string&& name) override {
    if (stack_.back()->contains(name)) {
      return invalid_argument("duplicate key '{}'; wanted each key once in an object",
                              utf8_prefix(name, kShownKeyBytes));
    }
    key_ = std::move(name);
    return ok_status();
  }
  Status end_object() override { return close(); }
  Status start_array() override { return open(Json::array()); }
  Status end_array() override { return close(); }

  Json root;

 private:
  Json* attach(Json value) {
    if (stack_.empty()) return &(root = std::move(value));
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
  Status put(Json value) override {
    attach(std::move(value));
    return ok_status();
  }
  Status open(Json container) {
    stack_.push_back(attach(std::move(container)));
    return ok_status();
  }
  Status close() {
    stack_.pop_back();
    return ok_status();
  }

  std::vector<Json*> stack_;  // the open arrays and objects; they lie in `root`
  std::string key_;
};

Status wrong_type(std::string_view key, const Json& value, std::string_view wanted) {
  return invalid_argument("{} is {} {}; wanted {}", key, json_type_name(value) == "integer" ? "an" : "a",
                          json_type_name(value), wanted);
}

}  // namespace

Result<Json> parse_json(std::string_view text, int max_depth) {
  TreeBuilder tree;
  RETURN_IF_ERROR(read_json(text, tree, max_depth));
  return std::move(tree.root);
}

std::string_view json_type_name(const Json& value) {
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  return value.type_name();
}

const Json* json_find(const Json& object, std::string_view key) {
  auto it = object.find(std::string(key));
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Status json_read(const Json& object, std::string_view key, bool& out) {
  const Json* value = json_find(object, key);
  if (!value) return ok_status();
  if (!value->is_boolean()) return wrong_type(key, *value, "a boolean");
  out = value->get<bool>();
  return ok_status();
}

Status json_read(const Json& object, std::string_view key, int64_t& out) {
  const Json* value = json_find(object, key);
  if (!value) return ok_status();
  if (!value->is_number_integer()) return wrong_type(key, *value, "an integer");
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return invalid_argument("{} is {}; wanted an integer of at most 64 bits", key, value->get<uint64_t>());
  }
  out = value->get<int64_t>();
  return ok_status();
}

Status json_read(const Json& object, std::string_view key, double& out) {
  const Json* value = json_find(object, key);
  if (!value) return ok_status();
  if (!value->is_number()) return wrong_type(key, *value, "a number");
  const double number = value->get<double>();
  if (!std::isfinite(number)) return invalid_argument("{} is not finite; wanted a finite number", key);
  out = number;
  return ok_status();
}

Status json_read(const Json& object, std::string_view key, std::string& out) {
  const Json* value = json_find(object, key);
  if (!value) return ok_status();
  if (!value->is_string()) return wrong_type(key, *value, "a string");
  out = value->get<std::string>();
  return ok_status();
}

void json_append_string(std::string& out, std::string_view text) {
  out.push_back('"');
  static constexpr char kHex[] = "0123456789abcdef";
  const auto plain = [](char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t run = i;
    while (i < text.size() && plain(text[i])) ++i;
    out.append(text.substr(run, i - run));
    if (i == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      switch (byte) {
        case '"':
          out += "\\\"";
          break;
        case '\\':
          out += "\\\\";
          break;
        case '\n':
          out += "\\n";
          break;
        case '\r':
          out += "\\r";
          break;
        case '\t':
          out += "\\t";
          break;
        default:
          out += "\\u00";
          out.push_back(kHex[byte >> 4]);
          out.push_back(kHex[byte & 15]);
      }
      ++i;
      continue;
    }
    const Utf8Unit unit = utf8_classify(text.substr(i));
    const bool valid = unit.state == Utf8State::kComplete;
    const std::size_t size = valid ? unit.size_bytes : 1;  // each byte that is none becomes a U+FFFD
    out += valid ? text.substr(i, size) : kReplacementCharacter;
    i += size;
  }
  out.push_back('"');
}

std::string json_quoted(std::string_view text) {
  std::string out;
  json_append_string(out, text);
  return out;
}

}  // namespace millrace
