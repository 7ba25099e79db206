#include "base/ordered_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Receives what nlohmann's parser reads. The entries of an open array or object are kept aside, and become one when
// it ends: an ordered object that grows would copy them with all that is below, since its keys are const.
class OrderedBuilder {
 public:
  using number_integer_t = OrderedJson::number_integer_t;
  using number_unsigned_t = OrderedJson::number_unsigned_t;
  using number_float_t = OrderedJson::number_float_t;
  using string_t = OrderedJson::string_t;
  using binary_t = OrderedJson::binary_t;

  bool null() { return put(nullptr); }
  bool boolean(bool v) { return put(v); }
  bool number_integer(number_integer_t v) { return put(v); }
  bool number_unsigned(number_unsigned_t v) { return put(v); }
  bool number_float(number_float_t v, const string_t&) { return put(v); }
  bool string(string_t& v) { return put(std::move(v)); }
  bool binary(binary_t&) { return false; }  // of the binary formats alone, which are not read here
  bool start_object(std::size_t) { return open(); }
  bool start_array(std::size_t) { return open(); }
  bool key(string_t& name) {
    open_.back().keys.push_back(std::move(name));
    return true;
  }
  bool end_object() {
    Container ended = close();
    OrderedJson::object_t object;
    object.reserve(ended.values.size());
    // Of the vector below the map: the map's own emplace() searches.
    for (std::size_t i = 0; i < ended.values.size(); ++i) {
      object.emplace_back(std::move(ended.keys[i]), std::move(ended.values[i]));
    }
    return put(std::move(object));
  }
  bool end_array() { return put(close().values); }
  template <typename Error>
  bool parse_error(std::size_t, const std::string&, const Error& error) {
    throw error;  // of its own type, as ordered_json::parse() does
  }

  OrderedJson root;

 private:
  struct Container {
    std::vector<std::string> keys;  // of an object, one for each value
    OrderedJson::array_t values;
  };

  bool open() {
    open_.emplace_back();
    return true;
  }
  Container close() {
    Container out = std::move(open_.back());
    open_.pop_back();
    return out;
  }
  bool put(OrderedJson value) {
    if (open_.empty()) {
      root = std::move(value);
    } else {
      open_.back().values.push_back(std::move(value));
    }
    return true;
  }

  std::vector<Container> open_;
};

}  // namespace

OrderedJson parse_ordered_json(std::string_view text) {
  OrderedBuilder builder;
  OrderedJson::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder.root);
}

}  // namespace millrace
