// Stored responses: how long and how many are kept, and what a conversation holds.
#include "api/response_store.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/stored_input.h"

namespace millrace::api {
namespace {

constexpr int64_t kNow = 1000;

std::string body_of(const std::string& id, const std::string& text = "hello") {
  return R"({"id":")" + id + R"(","output":[{"type":"message","id":"msg_)" + id +
         R"(","role":"assistant","content":[{"type":"output_text","text":")" + text + R"("}]}]})";
}

void add(ResponseStore& store, const std::string& id, const std::string& before = "", int64_t now_s = kNow) {
  store.add(id, body_of(id), R"([{"type":"message","id":"in_)" + id + R"(","role":"user","content":"hi"}])",
            before.empty() ? nullptr : store.find(before, now_s), {"msg_" + id}, now_s);
}

TEST(ResponseStore, KeepsAndForgets) {
  ResponseStore store;
  add(store, "a");
  ASSERT_NE(store.find("a", kNow), nullptr);
  EXPECT_EQ(store.find("a", kNow)->body, body_of("a"));
  EXPECT_EQ(store.find_item("msg_a", kNow), store.find("a", kNow));
  EXPECT_EQ(store.find("b", kNow), nullptr);
  EXPECT_EQ(store.find_item("msg_b", kNow), nullptr);
  EXPECT_TRUE(store.forget("a", kNow));
  EXPECT_FALSE(store.forget("a", kNow));
  EXPECT_EQ(store.find("a", kNow), nullptr);
  EXPECT_EQ(store.find_item("msg_a", kNow), nullptr);
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, AnIdThatComesAgainReplaces) {
  ResponseStore store;
  add(store, "a");
  const std::size_t bytes = store.bytes();
  store.add("a", body_of("b"), "[]", nullptr, {"msg_b"}, kNow);
  EXPECT_EQ(store.size(), 1u);
  EXPECT_LT(store.bytes(), bytes);
  EXPECT_EQ(store.find_item("msg_a", kNow), nullptr);
  EXPECT_NE(store.find_item("msg_b", kNow), nullptr);
}

TEST(ResponseStore, TimeAndMemoryAreBounded) {
  ResponseStore store;
  store.set_limits(std::size_t{1} << 20, 60);
  add(store, "a");
  EXPECT_NE(store.find("a", kNow + 59), nullptr);
  EXPECT_EQ(store.find("a", kNow + 60), nullptr);
  EXPECT_EQ(store.find_item("msg_a", kNow + 60), nullptr);
  add(store, "b", "", kNow + 60);
  EXPECT_EQ(store.size(), 1u) << "what has expired is not held";
  for (int i = 0; i < 40; ++i) {
    store.add("big" + std::to_string(i), std::string(100'000, 'x'), "[]", nullptr, {}, kNow + 60);
    EXPECT_LE(store.bytes(), std::size_t{1} << 20);
  }
  EXPECT_EQ(store.find("b", kNow + 60), nullptr) << "the oldest go";
  EXPECT_NE(store.find("big39", kNow + 60), nullptr);
  store.add("huge", std::string(2'000'000, 'x'), "[]", nullptr, {}, kNow + 60);
  EXPECT_EQ(store.size(), 0u);
  EXPECT_EQ(store.bytes(), 0u);
  store.set_limits(0, 60);
  add(store, "c");
  EXPECT_EQ(store.size(), 0u);
}

TEST(ResponseStore, CountsAreBounded) {
  ResponseStore store;
  for (std::size_t i = 0; i <= kMaxStoredResponses; ++i) store.add(std::to_string(i), "{}", "[]", nullptr, {}, kNow);
  EXPECT_EQ(store.size(), kMaxStoredResponses);
  EXPECT_EQ(store.find("0", kNow), nullptr);
  EXPECT_NE(store.find("1", kNow), nullptr);
}

TEST(ResponseStore, KnowsWhyAResponseIsGone) {
  ResponseStore store;
  store.set_limits(std::size_t{1} << 20, 60);
  EXPECT_EQ(store.why_gone("a", kNow), Gone::kUnknown);
  add(store, "a");
  add(store, "b");
  EXPECT_TRUE(store.forget("b", kNow));
  EXPECT_EQ(store.why_gone("b", kNow), Gone::kDeleted);
  EXPECT_EQ(store.why_gone("a", kNow + 60), Gone::kExpired) << "while it is held still";
  add(store, "c", "", kNow + 60);
  EXPECT_EQ(store.why_gone("a", kNow + 60), Gone::kExpired) << "and after";
  store.add("huge", std::string(2'000'000, 'x'), "[]", nullptr, {}, kNow + 60);
  EXPECT_EQ(store.why_gone("c", kNow + 60), Gone::kReplaced);
  EXPECT_EQ(store.why_gone("huge", kNow + 60), Gone::kReplaced);
  add(store, "b", "", kNow + 60);
  EXPECT_NE(store.find("b", kNow + 60), nullptr);
  EXPECT_EQ(store.why_gone("b", kNow + 120), Gone::kExpired) << "of the second one, not the first";
  for (std::size_t i = 0; i <= kMaxGoneResponses; ++i) {
    store.add(std::to_string(i), "{}", "[]", nullptr, {}, kNow + 60);
    store.forget(std::to_string(i), kNow + 60);
  }
  EXPECT_EQ(store.why_gone("0", kNow + 60), Gone::kUnknown) << "so many are known";
  EXPECT_EQ(store.why_gone("1", kNow + 60), Gone::kDeleted);
}

// A conversation is held by its last response, also where the earlier ones are forgotten, and its bytes count until
// then.
TEST(ResponseStore, AConversationOutlivesItsFirstResponses) {
  ResponseStore store;
  add(store, "a");
  const std::size_t one = store.bytes();
  add(store, "b", "a");
  EXPECT_TRUE(store.forget("a", kNow));
  EXPECT_GT(store.bytes(), one);
  const auto items = input_items(*store.find("b", kNow));
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0]["id"], "in_a");
  EXPECT_EQ(items[1]["id"], "msg_a");
  EXPECT_EQ(items[2]["id"], "in_b");
  EXPECT_TRUE(store.forget("b", kNow));
  EXPECT_EQ(store.bytes(), 0u);
}

Json resolved(const ResponseStore& store, const char* text, StoredInput* input = nullptr) {
  Json body = Json::parse(text);
  const Result<StoredInput> out = resolve_stored_input(body, store, kNow);
  if (!out.ok()) return out.status().message();
  if (input) *input = *out;
  return body["input"];
}

TEST(StoredInput, PutsTheConversationBeforeTheInput) {
  ResponseStore store;
  add(store, "a");
  add(store, "b", "a");
  const Json items = resolved(store, R"({"input":"and now?","previous_response_id":"b"})");
  ASSERT_EQ(items.size(), 5u);
  const char* ids[] = {"in_a", "msg_a", "in_b", "msg_b"};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(items[i]["id"], ids[i]);
  EXPECT_EQ(items[4]["content"], "and now?");
  EXPECT_EQ(resolved(store, R"({"input":"hi"})"), "hi");
  const Json list = Json::parse(R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(resolved(store, R"({"input":[{"role":"user","content":"hi"}]})"), list);
}

TEST(StoredInput, ReferencesStandForItems) {
  ResponseStore store;
  add(store, "a");
  StoredInput input;
  const Json items =
      resolved(store, R"({"input":[{"role":"user","content":"x"},{"type":"item_reference","id":"msg_a"}]})", &input);
  EXPECT_EQ(items[0]["content"], "x");
  EXPECT_EQ(items[1]["content"][0]["text"], "hello");
  const Json kept = Json::parse(input.items);
  EXPECT_TRUE(kept[0]["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(kept[0]["content"], Json::parse(R"([{"type":"input_text","text":"x"}])"));
  EXPECT_EQ(kept[1]["id"], "msg_a");
}

TEST(StoredInput, WhatIsNotStoredIsRefused) {
  ResponseStore store;
  const auto refuses = [&](const char* text, const std::string& part) {
    const Json got = resolved(store, text);
    EXPECT_TRUE(got.is_string() && got.get<std::string>().find(part) != std::string::npos) << got;
  };
  refuses(R"({"input":"a","previous_response_id":"nothing"})",
          "previous_response_id is 'nothing', and no such response is stored: it was not stored by this server");
  add(store, "deleted");
  store.forget("deleted", kNow);
  refuses(R"({"input":"a","previous_response_id":"deleted"})", "no such response is stored: it was deleted; wanted");
  add(store, "old", "", kNow - kDefaultStoredSeconds);
  refuses(R"({"input":"a","previous_response_id":"old"})", "no such response is stored: it expired; ");
  refuses(R"({"input":"a","previous_response_id":7})", "previous_response_id is");
  refuses(R"({"input":[{"type":"item_reference","id":"msg_x"}]})",
          "input[0].id is 'msg_x', and no such item is stored");
  store.add("big", R"({"output":[],"x":")" + std::string(kMaxConversationBytes, 'x') + "\"}", "[]", nullptr, {}, kNow);
  refuses(R"({"input":"a","previous_response_id":"big"})", "wanted at most 4194304");
}

TEST(StoredInput, WhatItRefersToIsCounted) {
  ResponseStore store;
  add(store, "a");
  add(store, "b", "a");
  const auto count = [&](const char* text) { return bytes_referred_to(Json::parse(text), store, kNow); };
  const std::size_t a = store.find("a", kNow)->conversation_bytes, b = store.find("b", kNow)->conversation_bytes;
  EXPECT_GT(b, a);
  EXPECT_EQ(count(R"({"input":"x"})"), 0u);
  EXPECT_EQ(count(R"({"input":"x","previous_response_id":"b"})"), b);
  EXPECT_EQ(count(R"({"input":[{"type":"item_reference","id":"msg_a"},7],"previous_response_id":"nothing"})"), a);
  EXPECT_EQ(count("7"), 0u);
}

// 16,000 references to one large item are a megabyte of body.
TEST(StoredInput, ItemsThatAreReferredToAreBounded) {
  ResponseStore store;
  store.set_limits(std::size_t{64} << 20, 60);
  store.add("a", body_of("a", std::string(kMaxConversationBytes / 2, 'x')), "[]", nullptr, {"msg_a"}, kNow);
  const auto resolved = [&](int references) {
    Json body = {{"input", Json::array()}};
    for (int i = 0; i < references; ++i) body["input"].push_back({{"type", "item_reference"}, {"id", "msg_a"}});
    const auto input = resolve_stored_input(body, store, kNow);
    return input.ok() ? "" : input.status().message();
  };
  EXPECT_EQ(resolved(1), "");
  EXPECT_TRUE(resolved(2).starts_with("input[1].id refers to an item that brings those of this input to "))
      << resolved(2);
}

}  // namespace
}  // namespace millrace::api
