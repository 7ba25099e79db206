#include "grammar/json_index.h"

#include <functional>
#include <utility>

#include "base/status.h"

namespace millrace::grammar {
namespace {

std::size_t mixed(std::size_t hash, std::size_t more) {
  constexpr std::size_t kOdd = 0x9E3779B97F4A7C15u;
  return (hash ^ more) * kOdd + (hash >> 29);
}

// Equal values have equal hashes, so numbers count as what they are as doubles.
std::size_t hash_of(const Schema& value) {
  if (value.is_number()) return std::hash<double>{}(value.get<double>());
  if (value.is_string()) return std::hash<std::string>{}(value.get_ref<const std::string&>());
  std::size_t hash = static_cast<std::size_t>(value.type()) + 1;
  if (value.is_boolean()) return mixed(hash, value.get<bool>() ? 1 : 0);
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      hash = mixed(mixed(hash, std::hash<std::string>{}(key)), hash_of(member));
    }
  } else if (value.is_array()) {
    for (const Schema& element : value) hash = mixed(hash, hash_of(element));
  }
  return hash;
}

}  // namespace

KeyIndex::KeyIndex(const Schema& object) {
  if (!object.is_object()) return;
  const auto& members = object.get_ref<const Schema::object_t&>();
  members_.reserve(members.size());
  for (const auto& [key, value] : members) members_.emplace(key, &value);
}

const Schema* KeyIndex::find(const std::string& key) const {
  const auto found = members_.find(key);
  return found == members_.end() ? nullptr : found->second;
}

ValueSet::ValueSet(const Schema& array) {
  if (!array.is_array()) return;
  values_.reserve(array.size());
  for (const Schema& value : array) insert(value);
}

bool ValueSet::insert(const Schema& value) { return values_.insert(&value).second; }

std::size_t ValueSet::Hash::operator()(const Schema* value) const { return hash_of(*value); }

void append_new(Schema& list, const Schema& more) {
  if (list.is_null()) list = Schema::array();
  list.get_ref<Schema::array_t&>().reserve(list.size() + more.size());  // the set points into it
  ValueSet known(list);
  for (const Schema& one : more) {
    if (known.contains(one)) continue;
    list.push_back(one);
    known.insert(list.back());
  }
}

void add_member(Schema& object, const std::string& key, Schema value) {
  CHECK(object.is_object());  // get_ref() would throw
  auto& members = object.get_ref<Schema::object_t&>();
  static_cast<Schema::object_t::Container&>(members).emplace_back(key, std::move(value));
}

}  // namespace millrace::grammar
