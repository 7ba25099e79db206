#include "api/value_json.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "api/base64.h"
#include "payload/packing.h"

namespace millrace::api {
namespace {

constexpr uint64_t kMaxExtent = uint64_t{1} << 40;

Result<std::string> from_base64(const std::string& text, const std::string& where) {
  if (text.size() % 4 != 0 || text.size() > std::size_t{std::numeric_limits<int>::max()}) {
    return invalid_argument("{} has {} characters of base64; wanted a multiple of 4", where, text.size());
  }
  std::string out(text.size() / 4 * 3, '\0');
  if (text.empty()) return out;
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  if (size < 0 || text.find('=') < text.size() - padding) return invalid_argument("{} is not base64", where);
  out.resize(static_cast<std::size_t>(size) - padding);
  return out;
}

Result<Value> tensor_from_json(const Json& json, const std::string& where) {
  if (!json.is_object()) return invalid_argument("{} is a {}; wanted an object", where, json_type_name(json));
  std::string name, text;
  RETURN_IF_ERROR(json_read(json, "dtype", name).with_prefix(where));
  RETURN_IF_ERROR(json_read(json, "base64", text).with_prefix(where));
  const auto dtype = dtype_from_name(name);
  if (!dtype)
    return invalid_argument("{}.dtype is '{}'; wanted U8, I16, I32, F32 or another", where, name.substr(0, 32));
  const Json* dims = json_find(json, "shape");
  if (dims == nullptr || !dims->is_array() || dims->size() > static_cast<std::size_t>(kMaxDims)) {
    return invalid_argument("{}.shape is missing or no list of at most {} extents", where, kMaxDims);
  }
  SharedTensor tensor{.dtype = *dtype};
  ASSIGN_OR_RETURN(const std::string bytes, from_base64(text, where + ".base64"));
  uint64_t elements = 1;
  bool none = false;
  for (const Json& dim : *dims) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > kMaxExtent) {
      return invalid_argument("{}.shape holds {}; wanted extents of 0 to {}", where, dim.dump().substr(0, 32),
                              kMaxExtent);
    }
    const auto extent = dim.get<uint64_t>();
    none = none || extent == 0;
    tensor.shape.push_back(static_cast<int64_t>(extent));
    if (__builtin_mul_overflow(elements, extent, &elements)) elements = UINT64_MAX;
  }
  if (none) elements = 0;
  if (elements > bytes.size() || elements * dtype_size(*dtype) != bytes.size()) {
    return invalid_argument("{} has {} bytes; wanted those of {} {}", where, bytes.size(), name,
                            tensor.shape.to_string());
  }
  Buffer buffer(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer.data(), bytes.data(), bytes.size());
  tensor.bytes = SharedBytes(std::move(buffer));
  return Value(std::move(tensor));
}

// nullopt: an object like any other.
std::optional<Result<Value>> special(const Json& json, const std::string& where) {
  if (json.size() != 1) return std::nullopt;
  const std::string& key = json.begin().key();
  const Json& member = json.begin().value();
  if (key == "$tensor") return tensor_from_json(member, where + ".$tensor");
  if (key != "$bytes" && key != "$number") return std::nullopt;
  const std::string at = where + "." + key;
  if (!member.is_string()) {
    return Result<Value>(invalid_argument("{} is a {}; wanted a string", at, json_type_name(member)));
  }
  const std::string& text = member.get_ref<const std::string&>();
  if (key == "$bytes") {
    auto bytes = from_base64(text, at);
    return bytes.ok() ? Result<Value>(Value(ValueBytes{*bytes})) : Result<Value>(bytes.status());
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "nan") return Result<Value>(Value(std::numeric_limits<double>::quiet_NaN()));
  if (text == "inf") return Result<Value>(Value(kInfinity));
  if (text == "-inf") return Result<Value>(Value(-kInfinity));
  return Result<Value>(invalid_argument("{} is '{}'; wanted nan, inf or -inf", at, text.substr(0, 32)));
}

Result<Value> from_object(const Json& json, const std::string& where) {
  if (auto found = special(json, where)) return std::move(*found);
  ValueMap map;
  for (const auto& [key, member] : json.items()) {
    ASSIGN_OR_RETURN(Value value, value_from_json(member, where + "." + key.substr(0, 64)));
    map.emplace_back(key, std::move(value));
  }
  return Value(std::move(map));
}

void append_double(std::string& out, double value) {
  if (std::isfinite(value)) {
    const std::size_t at = out.size();
    fmt::format_to(std::back_inserter(out), "{}", value);
    // A number stays one: 3.0 must not come back as the integer 3.
    if (out.find_first_of(".e", at) == std::string::npos) out += ".0";
    return;
  }
  out += std::isnan(value) ? R"({"$number":"nan"})" : value > 0 ? R"({"$number":"inf"})" : R"({"$number":"-inf"})";
}

void append_tensor(std::string& out, const SharedTensor& tensor) {
  fmt::format_to(std::back_inserter(out), R"({{"$tensor":{{"dtype":"{}","shape":[)", dtype_name(tensor.dtype));
  for (int i = 0; i < tensor.shape.rank(); ++i)
    fmt::format_to(std::back_inserter(out), "{}{}", i ? "," : "", tensor.shape[i]);
  out += R"(],"base64":")";
  append_base64(out, tensor.bytes.data(), tensor.bytes.size_bytes());
  out += "\"}}";
}

}  // namespace

Result<Value> value_from_json(const Json& json, const std::string& where) {
  switch (json.type()) {
    case Json::value_t::null:
      return Value();
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return invalid_argument("{} is {}; wanted an integer of 64 bits", where, number);
      }
      return Value(static_cast<int64_t>(number));
    }
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return Value(json.get<std::string>());
    case Json::value_t::array: {
      ValueList list;
      for (std::size_t i = 0; i < json.size(); ++i) {
        ASSIGN_OR_RETURN(Value value, value_from_json(json[i], fmt::format("{}[{}]", where, i)));
        list.push_back(std::move(value));
      }
      return Value(std::move(list));
    }
    case Json::value_t::object:
      return from_object(json, where);
    default:
      return invalid_argument("{} is of no known kind", where);
  }
}

void append_value(std::string& out, const Value& value) {
  if (const auto* flag = value.get<bool>()) {
    out += *flag ? "true" : "false";
  } else if (const auto* integer = value.get<int64_t>()) {
    fmt::format_to(std::back_inserter(out), "{}", *integer);
  } else if (const auto* number = value.get<double>()) {
    append_double(out, *number);
  } else if (const auto* text = value.get<std::string>()) {
    json_append_string(out, *text);
  } else if (const auto* bytes = value.get<ValueBytes>()) {
    out += R"({"$bytes":")";
    append_base64(out, bytes->bytes.data(), bytes->bytes.size());
    out += "\"}";
  } else if (const auto* list = value.get<ValueList>()) {
    out += '[';
    for (std::size_t i = 0; i < list->size(); ++i) {
      if (i) out += ',';
      append_value(out, (*list)[i]);
    }
    out += ']';
  } else if (const auto* map = value.get<ValueMap>()) {
    out += '{';
    for (std::size_t i = 0; i < map->size(); ++i) {
      if (i) out += ',';
      json_append_string(out, (*map)[i].first);
      out += ':';
      append_value(out, (*map)[i].second);
    }
    out += '}';
  } else if (const auto* tensor = value.get<SharedTensor>()) {
    append_tensor(out, *tensor);
  } else {
    out += "null";
  }
}

}  // namespace millrace::api
