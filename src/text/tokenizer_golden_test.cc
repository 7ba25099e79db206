// The tokenizer against Hugging Face tokenizers 0.23: tests/golden/tokenizer/<name>.json, made by
// tests/oracles/tokenizer_golden.py, holds ids, decoded texts, and hashes over inputs that this file makes again.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json.h"
#include "base/testing/test_data.h"
#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kBlocks = 64;

const fs::path kGolden = fs::path(MILLRACE_SOURCE_DIR) / "tests/golden/tokenizer";

// As in tokenizer_golden.py (Steele, Lea, Flood 2014).
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t below(uint64_t limit) {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return (z ^ (z >> 31)) % limit;
  }

 private:
  uint64_t state_;
};

// FNV-1a over whole values, with a mark after each text.
class Hash {
 public:
  template <typename Values>
  void add(const Values& values) {
    for (const auto value : values)
      put(static_cast<uint64_t>(static_cast<std::make_unsigned_t<decltype(+value)>>(value)));
    put(0xFFFFFFFF);
  }
  void add_bytes(const std::string& bytes) {
    for (const char c : bytes) put(static_cast<unsigned char>(c));
    put(0xFFFFFFFF);
  }
  std::string hex() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state_));
    return text;
  }

 private:
  void put(uint64_t value) { state_ = (state_ ^ value) * 0x100000001B3ULL; }
  uint64_t state_ = 0xCBF29CE484222325ULL;
};

nlohmann::json read_json(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  auto json = parse_json(text.str());
  EXPECT_TRUE(json.ok()) << path << ": " << json.status().message();
  return json.ok() ? std::move(json).value() : nlohmann::json();
}

struct Source {
  std::string name;
  fs::path folder;
};

const std::vector<Source> kSources = {
    {"stories260k", kGolden / "stories260k"},
    {"bytes500", kGolden / "bytes500"},
    {"qwen3", test_data("tokenizers/qwen3")},
    {"qwen2_5", test_data("tokenizers/qwen2_5")},
    {"llama3", test_data("tokenizers/llama3")},
    {"gpt2", test_data("tokenizers/gpt2")},
    {"gpt4o", test_data("tokenizers/gpt4o")},
    {"deepseek_v3", test_data("tokenizers/deepseek_v3")},
    {"mistral_nemo", test_data("tokenizers/mistral_nemo")},
    {"stories15m", test_data("models/stories15M")},
    {"tinystories_656k", test_data("models/tinystories-656k")},
};

class GoldenTest : public testing::TestWithParam<Source> {
 protected:
  static void SetUpTestSuite() { corpus_ = new std::vector<std::string>(read_json(kGolden / "corpus.json")); }

  void SetUp() override {
    const Source& source = GetParam();
    if (!fs::exists(source.folder / "tokenizer.json")) {
      GTEST_SKIP() << no_test_data(source.name);
    }
    golden_ = read_json(kGolden / (source.name + ".json"));
    // Without the configuration: the oracle reads tokenizer.json alone.
    static std::string loaded;
    static std::shared_ptr<const Tokenizer> kept;
    if (loaded != source.name) {
      std::ifstream file(source.folder / "tokenizer.json");
      std::stringstream text;
      text << file.rdbuf();
      auto tokenizer = Tokenizer::from_json(text.str());
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
      kept = std::move(tokenizer).value();
      loaded = source.name;
    }
    tokenizer_ = kept;
  }

  std::vector<int32_t> encode(std::string_view text, bool special = false) const {
    auto ids = tokenizer_->encode(text, {.add_special_tokens = special});
    EXPECT_TRUE(ids.ok()) << ids.status().to_string();
    return ids.ok() ? *ids : std::vector<int32_t>();
  }

  std::vector<std::vector<int32_t>> random_ids() const {
    SplitMix random(3);
    std::vector<std::vector<int32_t>> lists(2000);
    for (auto& list : lists) {
      list.resize(1 + random.below(24));
      for (int32_t& id : list) id = static_cast<int32_t>(random.below(static_cast<uint64_t>(tokenizer_->vocab_size())));
    }
    return lists;
  }

  // The hash over the code points of one block, each with `before` and `after` beside it.
  std::string hash_block(uint32_t block, std::string_view before, std::string_view after) const {
    Hash hash;
    for (uint32_t c = block * 0x110000 / kBlocks; c < (block + 1) * 0x110000 / kBlocks; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      std::string text(before);
      utf8_append(text, c);
      hash.add(encode(text.append(after)));
    }
    return hash.hex();
  }

  static std::vector<std::string>* corpus_;
  nlohmann::json golden_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

std::vector<std::string>* GoldenTest::corpus_ = nullptr;

TEST_P(GoldenTest, EncodesTheCorpus) {
  EXPECT_EQ(tokenizer_->vocab_size(), golden_["vocab_size"].get<int32_t>());
  for (size_t i = 0; i < corpus_->size(); ++i) {
    std::vector<int32_t> wanted = golden_["ids"][i];
    EXPECT_EQ(encode((*corpus_)[i]), wanted) << i << ": " << (*corpus_)[i];
    const std::vector<int32_t> prefix = golden_["prefix"], suffix = golden_["suffix"];
    wanted.insert(wanted.begin(), prefix.begin(), prefix.end());
    wanted.insert(wanted.end(), suffix.begin(), suffix.end());
    EXPECT_EQ(encode((*corpus_)[i], true), wanted) << i << ": " << (*corpus_)[i];
  }
}

TEST_P(GoldenTest, DecodesTheCorpus) {
  for (size_t i = 0; i < corpus_->size(); ++i) {
    const std::vector<int32_t> ids = golden_["ids"][i];
    const std::string key = std::to_string(i);
    const std::string kept = golden_["decoded"].value(key, (*corpus_)[i]);
    EXPECT_EQ(tokenizer_->decode(ids, false), kept) << i;
    EXPECT_EQ(tokenizer_->decode(ids, true), golden_["skipped"].value(key, kept)) << i;
  }
}

TEST_P(GoldenTest, EncodesMixedTexts) {
  SplitMix random(1);
  Hash hash;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t parts = 1 + random.below(8); parts > 0; --parts) text += (*corpus_)[random.below(corpus_->size())];
    hash.add(encode(text));
  }
  EXPECT_EQ(hash.hex(), golden_["mixed"].get<std::string>());
}

TEST_P(GoldenTest, EncodesRandomCodePoints) {
  struct Block {
    uint32_t first, count;
  };
  constexpr Block kBlocksOfRandom[] = {{0x20, 0x60},       {0x20, 0x60},      {0, 0x100},        {0x300, 0x70},
                                       {0x370, 0x600},     {0x900, 0x500},    {0x1100, 0x100},   {0x1E00, 0x200},
                                       {0x2000, 0x300},    {0x3040, 0xC0},    {0x4E00, 0x5200},  {0xAC00, 0x2BA4},
                                       {0xA640, 0x200},    {0x10000, 0x4000}, {0x1D000, 0x800},  {0x1F300, 0x700},
                                       {0x20000, 0x12000}, {0, 0xD800},       {0xE000, 0x102000}};
  SplitMix random(2);
  Hash hash;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint64_t count = 1 + random.below(40); count > 0; --count) {
      const Block& block = kBlocksOfRandom[random.below(std::size(kBlocksOfRandom))];
      utf8_append(text, static_cast<char32_t>(block.first + random.below(block.count)));
    }
    hash.add(encode(text));
  }
  EXPECT_EQ(hash.hex(), golden_["random"].get<std::string>());
}

TEST_P(GoldenTest, DecodesRandomIds) {
  Hash kept, skipped;
  for (const auto& ids : random_ids()) {
    kept.add_bytes(tokenizer_->decode(ids, false));
    skipped.add_bytes(tokenizer_->decode(ids, true));
  }
  EXPECT_EQ(kept.hex(), golden_["decode"].get<std::string>());
  EXPECT_EQ(skipped.hex(), golden_["decode_skipping"].get<std::string>());
}

// The texts of the stream are complete characters, never a premature U+FFFD, and join to what decode gives for all ids,
// which the tests above compare with the oracle.
TEST_P(GoldenTest, StreamsWhatItDecodes) {
  const auto lists = random_ids();
  for (size_t i = 0; i < lists.size(); i += 4) {
    for (const bool skip : {false, true}) {
      IncrementalDetokenizer detokenizer(tokenizer_, skip);
      std::string joined;
      for (const int32_t id : lists[i]) {
        const std::string added = detokenizer.push(id);
        EXPECT_EQ(utf8_find_invalid(added), std::string::npos);
        joined += added;
      }
      joined += detokenizer.finish();
      EXPECT_EQ(joined, tokenizer_->decode(lists[i], skip));
    }
  }
}

// A text and what continues it join to the text of all ids, wherever the first holds nothing back.
TEST_P(GoldenTest, ATextIsContinuedAsIfItWereOne) {
  const auto lists = random_ids();
  int compared = 0;
  for (size_t i = 0; i < lists.size(); i += 4) {
    const auto& ids = lists[i];
    for (const bool skip : {false, true}) {
      const size_t cut = ids.size() / 2;
      const std::vector<int32_t> head(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut));
      IncrementalDetokenizer before(tokenizer_, skip);
      std::string joined;
      for (const int32_t id : head) joined += before.push(id);
      const bool has_text = std::any_of(head.begin(), head.end(), [&](int32_t id) {
        return tokenizer_->has_token(id) && !(skip && tokenizer_->is_special(id));
      });
      if (!has_text || joined != tokenizer_->decode(head, skip)) continue;
      IncrementalDetokenizer behind(tokenizer_, skip, true);
      for (size_t k = cut; k < ids.size(); ++k) joined += behind.push(ids[k]);
      joined += behind.finish();
      EXPECT_EQ(joined, tokenizer_->decode(ids, skip));
      ++compared;
    }
  }
  EXPECT_GT(compared, 0);
}

TEST_P(GoldenTest, EncodesEveryCodePoint) {
  for (uint32_t block = 0; block < kBlocks; ++block) {
    EXPECT_EQ(hash_block(block, "", ""), golden_["alone"][block].get<std::string>()) << "block " << block;
    EXPECT_EQ(hash_block(block, "a", "b"), golden_["between"][block].get<std::string>()) << "block " << block;
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, GoldenTest, testing::ValuesIn(kSources),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace millrace
