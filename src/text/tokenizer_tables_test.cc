// Tokenizers that went through tables and back against Hugging Face's ids (tests/golden/tokenizer, made by
// tests/oracles/tokenizer_golden.py), and tables that are wrong.
#include "text/tokenizer_tables.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/testing/test_data.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(MILLRACE_SOURCE_DIR) / "tests/golden/tokenizer";
constexpr int64_t kSpareRows = 64;  // an embedding may have more rows than there are tokens

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Source {
  std::string name;
  fs::path folder;
  std::string model, pre;
};

const std::vector<Source> kSources = {
    {"stories260k", kGolden / "stories260k", "llama", "default"},
    {"qwen3", test_data("tokenizers/qwen3"), "gpt2", "qwen2"},
    {"qwen2_5", test_data("tokenizers/qwen2_5"), "gpt2", "qwen2"},
    {"llama3", test_data("tokenizers/llama3"), "gpt2", "llama-bpe"},
    {"gpt2", test_data("tokenizers/gpt2"), "gpt2", "gpt-2"},
    {"gpt4o", test_data("tokenizers/gpt4o"), "gpt2", "gpt-4o"},
    {"deepseek_v3", test_data("tokenizers/deepseek_v3"), "gpt2", "deepseek-v3"},
    {"mistral_nemo", test_data("tokenizers/mistral_nemo"), "gpt2", "tekken"},
    {"stories15m", test_data("models/stories15M"), "llama", "default"},
};

class TablesTest : public testing::TestWithParam<Source> {};

TEST_P(TablesTest, KeepTheIdsOfHuggingFace) {
  const Source& source = GetParam();
  if (!fs::exists(source.folder / "tokenizer.json")) GTEST_SKIP() << no_test_data(source.name);
  const std::string json = read(source.folder / "tokenizer.json");
  const auto golden = nlohmann::json::parse(read(kGolden / (source.name + ".json")));
  const std::vector<std::string> corpus = nlohmann::json::parse(read(kGolden / "corpus.json"));
  const int32_t ids = golden["vocab_size"].get<int32_t>();
  const auto tables = tables_of_tokenizer(json, {}, ids + kSpareRows);
  ASSERT_TRUE(tables.ok()) << tables.status().to_string();
  EXPECT_EQ(tables->model, source.model);
  EXPECT_EQ(tables->pre, source.pre);
  ASSERT_EQ(tables->tokens.size(), static_cast<std::size_t>(ids + kSpareRows));
  const auto tokenizer = tokenizer_from_tables(*tables);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  EXPECT_EQ((*tokenizer)->vocab_size(), ids);
  for (std::size_t i = 0; i < corpus.size(); ++i) {
    SCOPED_TRACE(corpus[i]);
    const std::vector<int32_t> wanted = golden["ids"][i];
    const auto plain = (*tokenizer)->encode(corpus[i], {.add_special_tokens = false});
    ASSERT_TRUE(plain.ok());
    EXPECT_EQ(*plain, wanted);
    std::vector<int32_t> with_prefix = golden["prefix"];
    with_prefix.insert(with_prefix.end(), wanted.begin(), wanted.end());
    const auto marked = (*tokenizer)->encode(corpus[i]);
    ASSERT_TRUE(marked.ok());
    EXPECT_EQ(*marked, with_prefix);
    EXPECT_EQ((*tokenizer)->decode(wanted, false), golden["decoded"].value(std::to_string(i), corpus[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, TablesTest, testing::ValuesIn(kSources),
                         [](const auto& info) { return info.param.name; });

TokenizerTables small_bytes() {
  TokenizerTables t;
  t.model = "gpt2";
  t.pre = "gpt-2";
  t.tokens = {"a", "b", "c", "ab", "abc", "<|end|>", "[USER]", "[PAD7]"};
  t.kinds = {1, 1, 1, 1, 1, 3, 4, 5};
  t.merges = {"a b", "ab c"};
  t.eos = 5;
  return t;
}

TokenizerTables small_sentencepiece() {
  TokenizerTables t;
  t.model = "llama";
  t.tokens = {"<unk>", "<s>", "a", "b", "ab", "\u2581"};
  t.kinds = {2, 3, 1, 1, 1, 1};
  t.scores = {0, 0, -3, -4, -1, -2};
  t.unk = 0;
  t.bos = 1;
  return t;
}

TEST(TokenizerTables, SmallOnes) {
  const auto bytes = tokenizer_from_tables(small_bytes());
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  EXPECT_EQ(*(*bytes)->encode("abca"), (std::vector<int32_t>{4, 0}));
  EXPECT_EQ(*(*bytes)->encode("ab[USER]c<|end|>"), (std::vector<int32_t>{3, 6, 2, 5}));
  EXPECT_TRUE((*bytes)->is_special(5));
  EXPECT_FALSE((*bytes)->is_special(6));
  EXPECT_FALSE((*bytes)->has_token(7));
  EXPECT_EQ((*bytes)->eos_id(), 5);
  TokenizerTables t = small_sentencepiece();
  auto sentencepiece = tokenizer_from_tables(t);
  ASSERT_TRUE(sentencepiece.ok()) << sentencepiece.status().to_string();
  EXPECT_EQ(*(*sentencepiece)->encode("ab z"), (std::vector<int32_t>{1, 5, 4, 5, 0}));
  t.add_bos = false;
  t.add_space_prefix = false;
  sentencepiece = tokenizer_from_tables(t);
  ASSERT_TRUE(sentencepiece.ok()) << sentencepiece.status().to_string();
  EXPECT_EQ(*(*sentencepiece)->encode("ab"), (std::vector<int32_t>{4}));
}

void expect_refused(const TokenizerTables& tables, StatusCode code, const std::string& part) {
  const auto refused = tokenizer_json_of(tables);
  ASSERT_FALSE(refused.ok()) << part;
  EXPECT_EQ(refused.status().code(), code) << part;
  EXPECT_NE(refused.status().message().find(part), std::string::npos) << refused.status().message();
  EXPECT_NE(refused.status().message().find("wanted"), std::string::npos) << refused.status().message();
}

TEST(TokenizerTables, WrongOnesAreRefused) {
  TokenizerTables t = small_bytes();
  t.pre = "falcon";
  expect_refused(t, StatusCode::kUnsupported, "pre is \"falcon\"; wanted one of gpt-2, llama-bpe");
  t = small_bytes();
  t.model = "bert";
  expect_refused(t, StatusCode::kUnsupported, "model is \"bert\"; wanted gpt2 or llama");
  t = small_bytes();
  t.kinds.pop_back();
  expect_refused(t, StatusCode::kInvalidArgument, "token_type has 7 entries; wanted 8");
  t = small_bytes();
  t.kinds[0] = 9;
  expect_refused(t, StatusCode::kInvalidArgument, "token_type[0] is 9; wanted 1 to 6");
  t = small_bytes();
  t.eos = 8;
  expect_refused(t, StatusCode::kInvalidArgument, "eos_token_id is 8; wanted 0 to 7");
  t = small_bytes();
  t.merges[1] = "abc";
  expect_refused(t, StatusCode::kInvalidArgument, "merges[1] is no pair");
  t = small_bytes();
  t.tokens[2] = "\xff";
  expect_refused(t, StatusCode::kInvalidArgument, "tokens[2] is not UTF-8");
  t = small_sentencepiece();
  t.scores.pop_back();
  expect_refused(t, StatusCode::kInvalidArgument, "scores has 5 entries; wanted 6");
  t = small_sentencepiece();
  t.scores[2] = std::numeric_limits<float>::quiet_NaN();
  expect_refused(t, StatusCode::kInvalidArgument, "scores[2] is nan");
  t = small_sentencepiece();
  t.unk = std::nullopt;
  expect_refused(t, StatusCode::kInvalidArgument, "unknown_token_id is missing");
  // What only the reader of tokenizer.json sees.
  t = small_bytes();
  t.tokens[1] = "a";
  EXPECT_FALSE(tokenizer_from_tables(t).ok());
  t = small_bytes();
  t.merges[0] = "a z";
  EXPECT_FALSE(tokenizer_from_tables(t).ok());
}

// A hostile file has the same long token many times, each of whose splits would be a merge.
TEST(TokenizerTables, TheMergesOfScoresAreBounded) {
  const TokenizerTables t = small_sentencepiece();
  const auto all = merges_of_scores(t);
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  ASSERT_FALSE(all->empty());
  EXPECT_TRUE(merges_of_scores(t, all->size()).ok());
  const auto refused = merges_of_scores(t, all->size() - 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kTooLarge);
  EXPECT_NE(refused.status().message().find("wanted at most"), std::string::npos) << refused.status().message();
}

TEST(TokenizerTables, WhatTheTablesCannotHoldIsRefused) {
  const auto json = tokenizer_json_of(small_bytes());
  ASSERT_TRUE(json.ok());
  ASSERT_TRUE(tables_of_tokenizer(json->tokenizer, json->config, 8).ok());
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = json->tokenizer;
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    const auto tables = tables_of_tokenizer(text.replace(at, from.size(), to), json->config, 8);
    ASSERT_FALSE(tables.ok()) << to;
    EXPECT_EQ(tables.status().code(), StatusCode::kUnsupported) << tables.status().message();
  };
  refused(R"("normalizer":null)", R"("normalizer":{"type":"Lowercase"})");
  refused(R"("normalizer":null)", R"("normalizer":{"type":"NFC"})");
  refused(R"("use_regex":true)", R"("use_regex":false)");
  refused(R"("ignore_merges":false)", R"("ignore_merges":true)");
  refused(R"("lstrip":false)", R"("lstrip":true)");
  EXPECT_EQ(tables_of_tokenizer(json->tokenizer, json->config, 4).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace millrace
