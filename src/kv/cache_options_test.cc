// Names of strategies and policies, the composed namespace key, and the containers under the tree.
#include "kv/cache_options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kv/extra_key.h"
#include "kv/indexed_heap.h"
#include "kv/radix_node.h"

namespace millrace {
namespace {

TEST(CacheOptions, NamesRoundTrip) {
  for (const char* name : {"lru", "lfu", "fifo", "mru", "filo", "priority", "slru"}) {
    const Result<EvictionStrategy> parsed = parse_eviction_strategy(name);
    ASSERT_TRUE(parsed.ok());
    EXPECT_STREQ(eviction_strategy_name(*parsed), name);
  }
  for (const char* name : {"write_through", "write_through_selective", "write_back"}) {
    const Result<WritePolicy> parsed = parse_write_policy(name);
    ASSERT_TRUE(parsed.ok());
    EXPECT_STREQ(write_policy_name(*parsed), name);
  }
}

TEST(CacheOptions, AnUnknownNameListsTheKnownOnes) {
  EXPECT_EQ(parse_eviction_strategy("LRU").status().message(),
            "the eviction strategy is 'LRU'; wanted lru, lfu, fifo, mru, filo, priority or slru");
  EXPECT_EQ(parse_write_policy("").status().message(),
            "the write policy is ''; wanted write_through, write_through_selective or write_back");
  EXPECT_EQ(validate(CacheOptions{.min_load_tokens = 0}).message(), "min_load_tokens is 0; wanted an integer >= 1");
}

// Every list of up to three parts over an alphabet made to confuse gives its own key.
TEST(ExtraKey, DifferentPartsGiveDifferentKeys) {
  EXPECT_EQ(ExtraKey().add("salt", "a").add("adapter", "b").str(), "4:salt1:a7:adapter1:b");
  EXPECT_EQ(ExtraKey().add("salt", "").str(), "");
  const std::vector<std::string> values = {"", "a", "1:a", "4:salt", "4:salt1:a", "7:media", std::string("\0", 1)};
  std::set<std::string> keys;
  std::size_t lists = 0;
  for (const std::string& salt : values) {
    for (const std::string& adapter : values) {
      for (const std::string& media : values) {
        keys.insert(ExtraKey().add("salt", salt).add("adapter", adapter).add("media", media).str());
        ++lists;
      }
    }
  }
  EXPECT_EQ(keys.size(), lists);
}

struct Item {
  int key = 0;
  int32_t heap_index = kNotInHeap;
};
struct HeapIndex {
  int32_t& operator()(Item* item) const { return item->heap_index; }
};

// Against a plain list, with hashes that collide in all bits, in the low bits, or not.
TEST(ChildMap, HoldsWhatWasPutIn) {
  std::mt19937_64 random(1);
  for (int spread = 0; spread < 3; ++spread) {
    std::list<RadixNode> nodes;
    std::vector<std::pair<uint64_t, RadixNode*>> inside;
    ChildMap map;
    for (int round = 0; round < 20000; ++round) {
      const uint64_t hash = spread == 0 ? random() % 3 : spread == 1 ? random() % 50 << 40 : random();
      if (inside.empty() || random() % 200 > inside.size()) {
        RadixNode* node = &nodes.emplace_back();
        map.insert(hash, node);
        inside.emplace_back(hash, node);
      } else {
        std::swap(inside[random() % inside.size()], inside.back());
        if (random() % 4 == 0) {
          RadixNode* with = &nodes.emplace_back();
          map.replace(inside.back().first, inside.back().second, with);
          inside.back().second = with;
        } else {
          map.erase(inside.back().first, inside.back().second);
          inside.pop_back();
        }
      }
      ASSERT_EQ(map.size(), inside.size());
      if (round % 64 != 0) continue;
      std::set<std::pair<uint64_t, RadixNode*>> seen;
      for (const auto& [slot_hash, child] : map) seen.emplace(slot_hash, child);
      ASSERT_EQ(seen, std::set(inside.begin(), inside.end()));
      for (const auto& [known, node] : inside) {
        ASSERT_EQ(map.find(known, [&](const RadixNode& child) { return &child == node; }), node);
      }
      ASSERT_EQ(map.find(hash, [](const RadixNode&) { return false; }), nullptr);
    }
  }
}

TEST(IndexedHeap, AlwaysGivesTheSmallest) {
  std::mt19937 random(1);
  std::vector<Item> items(200);
  IndexedHeap<int, Item*, HeapIndex> heap;
  const auto key = [](const Item* item) { return item->key; };
  for (int round = 0; round < 20000; ++round) {
    Item& item = items[random() % items.size()];
    const int value = static_cast<int>(random() % 1000);
    if (!heap.contains(&item)) {
      item.key = value;
      heap.push(&item, value);
    } else if (random() % 2 == 0) {
      item.key = value;
      heap.update(&item, value);
    } else {
      heap.erase(&item);
    }
    if (round % 16 == 0) {
      ASSERT_TRUE(heap.verify(key).ok()) << heap.verify(key).to_string();
    }
    int least = 1000;
    std::size_t inside = 0;
    for (const Item& each : items) {
      if (each.heap_index == kNotInHeap) continue;
      ++inside;
      least = std::min(least, each.key);
    }
    ASSERT_EQ(heap.size(), inside);
    if (inside > 0) {
      ASSERT_EQ(heap.top()->key, least);
    }
  }
}

TEST(IndexedHeap, VerifyFindsAStaleKey) {
  Item a{1}, b{2};
  IndexedHeap<int, Item*, HeapIndex> heap;
  heap.push(&a, 1), heap.push(&b, 2);
  b.key = 0;
  EXPECT_FALSE(heap.verify([](const Item* item) { return item->key; }).ok());
}

}  // namespace
}  // namespace millrace
