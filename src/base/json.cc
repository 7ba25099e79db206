#include "base/json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/utf8.h"

namespace millrace {
namespace {

// Builds the tree through nlohmann's SAX parser so that depth and duplicate keys are refused before anything deep
// exists: nlohmann's own DOM accepts any depth and then overflows the stack in copy and dump.
class BoundedBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  explicit BoundedBuilder(int max_depth) : max_depth_(max_depth) {}

  bool null() { return put(nullptr); }
  bool boolean(bool v) { return put(v); }
  bool number_integer(number_integer_t v) { return put(v); }
  bool number_unsigned(number_unsigned_t v) { return put(v); }
  bool number_float(number_float_t v, const string_t&) { return put(v); }
  bool string(string_t& v) { return put(std::move(v)); }
  bool binary(binary_t&) { return fail("binary values are not JSON"); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& name) {
    if (stack_.back()->contains(name)) return fail("duplicate key");
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    if (error_.empty()) error_ = fmt::format("malformed JSON at byte {}", position);
    return false;
  }

  Json root;
  const std::string& error_text() const { return error_; }

 private:
  bool fail(std::string_view what) {
    error_ = what;
    return false;
  }
  Json* attach(Json value) {
    if (stack_.empty()) return &(root = std::move(value));
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
  bool put(Json value) {
    attach(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (static_cast<int>(stack_.size()) >= max_depth_) {
      return fail(fmt::format("JSON nested deeper than {} levels", max_depth_));
    }
    stack_.push_back(attach(std::move(container)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  int max_depth_;
  std::vector<Json*> stack_;
  std::string key_;
  std::string error_;
};

Status wrong_type(std::string_view key, const Json& value, std::string_view wanted) {
  return invalid_argument("{} is {} {}; wanted {}", key, json_type_name(value) == "integer" ? "an" : "a",
                          json_type_name(value), wanted);
}

}  // namespace

Result<Json> parse_json(std::string_view text, int max_depth) {
  if (text.empty()) return invalid_argument("malformed JSON at byte 1: it is empty");
  // nlohmann's lexer takes a NUL for the end of the input and would ignore whatever follows it.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return invalid_argument("malformed JSON at byte {}", nul + 1);
  }
  BoundedBuilder builder(max_depth);
  try {
    if (Json::sax_parse(text.begin(), text.end(), &builder) && builder.error_text().empty()) {
      return std::move(builder.root);
    }
  } catch (const std::exception&) {
    return invalid_argument("malformed JSON");
  }
  return Status(StatusCode::kInvalidArgument, builder.error_text().empty() ? "malformed JSON" : builder.error_text());
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

}  // namespace millrace
