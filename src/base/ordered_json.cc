#include "base/ordered_json.h"

#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/json_events.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

// The entries of an open array or object are kept aside, and become one when it ends: an ordered object that grows
// would copy them with all that is below, since its keys are const.
class OrderedBuilder : public TreeHandler<OrderedJson> {
 public:
  Status start_object() override { return open(); }
  Status start_array() override { return open(); }
  Status key(std::string&& name) override {
    open_.back().keys.push_back(std::move(name));
    return ok_status();
  }
  Status end_object() override {
    Container ended = close();
    OrderedJson::object_t object;
    object.reserve(ended.values.size());
    // Of the vector below the map: the map's own emplace() searches.
    for (std::size_t i = 0; i < ended.values.size(); ++i) {
      object.emplace_back(std::move(ended.keys[i]), std::move(ended.values[i]));
    }
    return put(std::move(object));
  }
  Status end_array() override { return put(close().values); }

  OrderedJson root;

 private:
  struct Container {
    std::vector<std::string> keys;  // of an object, one for each value
    OrderedJson::array_t values;
  };

  Status open() {
    open_.emplace_back();
    return ok_status();
  }
  Container close() {
    Container out = std::move(open_.back());
    open_.pop_back();
    return out;
  }
  Status put(OrderedJson value) override {
    if (open_.empty()) {
      root = std::move(value);
    } else {
      open_.back().values.push_back(std::move(value));
    }
    return ok_status();
  }

  std::vector<Container> open_;
};

}  // namespace

OrderedJson parse_ordered_json(std::string_view text) {
  OrderedBuilder tree;
  const Status status = read_json(text, tree, kAnyJsonDepth);
  if (status.code() == StatusCode::kResourceExhausted) throw std::bad_alloc();
  CHECK(status.ok());  // the caller's text is JSON
  return std::move(tree.root);
}

}  // namespace millrace
