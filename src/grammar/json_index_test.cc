// Large schemas are joined and compared as small ones are: beside a model that compares each with each.
#include "grammar/json_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace millrace::grammar {
namespace {

// A few values, so that many are the same, some of them in other words.
Schema any_value(std::mt19937& random, int depth = 0) {
  const auto below = [&](unsigned n) { return random() % n; };
  switch (below(depth < 2 ? 8 : 6)) {
    case 0:
      return static_cast<int>(below(3)) - 1;
    case 1:
      return static_cast<double>(below(3)) / 2;
    case 2:
      return static_cast<uint64_t>(below(2));
    case 3:
      return std::string(1, static_cast<char>('a' + below(3)));
    case 4:
      return below(2) == 0;
    case 5:
      return below(2) == 0 ? Schema() : Schema(-0.0);
    case 6: {
      Schema list = Schema::array();
      for (auto n = below(3); n > 0; --n) list.push_back(any_value(random, depth + 1));
      return list;
    }
    default: {
      Schema object = Schema::object();
      for (auto n = below(3); n > 0; --n) {
        object[std::string(1, static_cast<char>('a' + below(3)))] = any_value(random, depth + 1);
      }
      return object;
    }
  }
}

TEST(GrammarIndexTest, ValuesAreFoundAsComparingFindsThem) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    Schema list = Schema::array(), more = Schema::array();
    for (int i = 0; i < 12; ++i) list.push_back(any_value(random)), more.push_back(any_value(random));
    const ValueSet set(list);
    Schema appended = Schema(), wanted = Schema::array();
    for (const Schema& value : more) {
      EXPECT_EQ(set.contains(value), std::find(list.begin(), list.end(), value) != list.end()) << value;
    }
    for (const Schema* of : {&list, &more}) {
      append_new(appended, *of);
      for (const Schema& value : *of) {
        if (std::find(wanted.begin(), wanted.end(), value) == wanted.end()) wanted.push_back(value);
      }
    }
    EXPECT_EQ(appended, wanted);
  }
}

// Some of n names, and properties of some names with one of three types.
Schema any_object(std::mt19937& random, int n) {
  Schema out{{"type", "object"}};
  for (int i = 0; i < n; ++i) {
    const std::string name = "p" + std::to_string(i);
    if (random() % 3 != 0) out["properties"][name] = {{"type", random() % 2 == 0 ? "string" : "integer"}};
    if (random() % 3 == 0) out["required"].push_back(name);
  }
  if (random() % 2 == 0) out["additionalProperties"] = {{"minLength", 2}};
  return out;
}

TEST(GrammarIndexTest, JoinedObjectsHaveEachPropertyOnce) {
  const Schema root;
  SchemaWork work;
  const SchemaMerger merger(root, work);
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    const Schema a = any_object(random, 6), b = any_object(random, 6);
    const auto joined = merger.merge(a, b);
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    if (*joined == Schema(false)) continue;  // a required one that cannot be
    Schema names = Schema::array();
    for (const Schema* of : {&a, &b}) {
      const Schema properties = of->value("properties", Schema::object());
      for (const auto& [name, value] : properties.items()) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
    Schema seen = Schema::array();
    const Schema named = joined->value("properties", Schema::object());
    for (const auto& [name, value] : named.items()) {
      seen.push_back(name);
      const auto of = [&](const Schema& from) {
        const Schema properties = from.value("properties", Schema::object());
        return properties.contains(name) ? properties.at(name) : from.value("additionalProperties", Schema(true));
      };
      const auto wanted = merger.merge_lazily(of(a), of(b), 0);
      ASSERT_TRUE(wanted.ok());
      EXPECT_EQ(value, *wanted) << a << b;
    }
    EXPECT_EQ(seen, names);
  }
}

TEST(GrammarIndexTest, DisjointSchemasShareNoValue) {
  const Schema root;
  SchemaWork work;
  const SchemaMerger merger(root, work);
  std::mt19937 random(13);
  int apart = 0;
  for (int round = 0; round < 400; ++round) {
    Schema a{{"enum", Schema::array()}}, b{{"enum", Schema::array()}};
    for (int i = 0; i < 4; ++i) a["enum"].push_back(any_value(random)), b["enum"].push_back(any_value(random));
    const bool shared = std::any_of(a["enum"].begin(), a["enum"].end(), [&](const Schema& value) {
      return std::find(b["enum"].begin(), b["enum"].end(), value) != b["enum"].end();
    });
    EXPECT_EQ(merger.disjoint(a, b), !shared) << a << b;
    apart += shared ? 0 : 1;
  }
  EXPECT_GT(apart, 20);
}

}  // namespace
}  // namespace millrace::grammar
