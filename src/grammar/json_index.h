// Lookups in large schemas, by name and by value: ordered_json compares with one after the other, so that a loop over
// two schemas of thousands of properties would make millions of comparisons.
//
// All refer to what they were made of, which has to stay where it is. Thread safety: none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "grammar/json_merge.h"

namespace millrace::grammar {

// The members of an object; what is no object has none.
class KeyIndex {
 public:
  explicit KeyIndex(const Schema& object);
  const Schema* find(const std::string& key) const;

 private:
  std::unordered_map<std::string_view, const Schema*> members_;
};

// Different values. As ordered_json compares them: 1 is 1.0, and the members of an object have a sequence.
class ValueSet {
 public:
  ValueSet() = default;
  // The elements; of what is no array, none.
  explicit ValueSet(const Schema& array);
  bool insert(const Schema& value);  // false: an equal one is in it
  bool contains(const Schema& value) const { return values_.contains(&value); }

 private:
  struct Hash {
    std::size_t operator()(const Schema* value) const;
  };
  struct Equal {
    bool operator()(const Schema* a, const Schema* b) const { return *a == *b; }
  };
  std::unordered_set<const Schema*, Hash, Equal> values_;
};

// Puts the elements behind those of the list, or of null, which are not there yet.
void append_new(Schema& list, const Schema& more);
// A member that the object does not have yet, without looking for it.
void add_member(Schema& object, const std::string& key, Schema value);

}  // namespace millrace::grammar
