// The masks of grammars over real vocabularies against XGrammar's (tests/golden/grammar, made by
// tests/oracles/grammar_masks.mjs): all bits, at each token of texts and of random walks.
//
// MILLRACE_GRAMMAR_MASKS names a folder with more such files, for any vocabulary. Where it has NAME.masks beside
// NAME.json, a difference is printed with its tokens.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/testing/test_data.h"
#include "grammar/matcher.h"
#include "stages/generating/grammar_compiler.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kListed = 12;  // tokens of a difference

// As the oracle writes it: of the mask's 32-bit words.
std::string digest(const grammar::TokenMask& mask, std::size_t bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sha{};
  unsigned size = 0;
  EXPECT_EQ(EVP_Digest(mask.data(), bytes, sha.data(), &size, EVP_sha256(), nullptr), 1);
  std::string out;
  for (std::size_t i = 0; i < 4; ++i) out += fmt::format("{:02x}", sha[i]);
  return out;
}

std::string quoted(const std::string& bytes) { return json(bytes).dump(-1, ' ', true, json::error_handler_t::replace); }

class PeerMasksTest : public testing::TestWithParam<std::string> {
 protected:
  // Empty: there is none of this vocabulary.
  static fs::path golden(const std::string& ending) {
    const char* extra = std::getenv("MILLRACE_GRAMMAR_MASKS");
    const fs::path folder = extra ? fs::path(extra) : fs::path(MILLRACE_SOURCE_DIR) / "tests/golden/grammar";
    const fs::path file = folder / (GetParam() + ending);
    return fs::exists(file) ? file : fs::path();
  }

  void load(const fs::path& tokenizer) {
    std::ifstream in(golden(".json"));
    golden_ = json::parse(in);
    auto loaded = Tokenizer::load(tokenizer);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    tokenizer_ = *loaded;
    end_ids_ = {golden_["end_id"].get<int32_t>()};
    bytes_ = (golden_["vocab_size"].get<std::size_t>() + 31) / 32 * 4;
    compiler_ = std::make_unique<GrammarCompiler>(tokenizer_, golden_["vocab_size"].get<int32_t>(), end_ids_);
    if (const fs::path masks = golden(".masks"); !masks.empty()) masks_.open(masks, std::ios::binary);
  }

  // As the worker `generate` has it.
  GrammarCompiler::Compiled compile(const json& one) {
    const std::string kind = one["kind"];
    GrammarKey key;
    key.kind = kind == "ebnf"    ? wire::GrammarKind::kEbnf
               : kind == "regex" ? wire::GrammarKind::kRegex
                                 : wire::GrammarKind::kJsonSchema;
    key.text = kind == "json_object" ? R"({"type":"object"})"  // what the API makes of it
                                     : one["source"].get<std::string>();
    if (auto known = compiler_->compile(ReqId{1}, key)) return *known;
    while (true) {
      auto finished = compiler_->take_finished();
      if (!finished.empty()) return finished.front().second;
      std::this_thread::yield();
    }
  }

  // Until the first mask that differs.
  void follow(const std::shared_ptr<grammar::Masks>& masks, const json& walk) {
    const std::vector<int32_t> ids = walk["ids"];
    grammar::Matcher matcher(masks);
    std::string text;
    for (std::size_t i = 0; i < walk["masks"].size(); ++i) {
      const std::span<const int32_t> before(ids.data(), i > 0 ? i - 1 : 0);
      const auto mask = matcher.mask(before, i > 0 ? std::optional(ids[i - 1]) : std::nullopt, end_ids_);
      if (i > 0) text += tokenizer_->token_bytes(ids[i - 1]);
      ASSERT_TRUE(mask.ok()) << "behind " << quoted(text) << ": " << mask.status().to_string();
      ASSERT_EQ(digest(*mask, bytes_), walk["masks"][i].get<std::string>())
          << "behind " << quoted(text) << difference(*mask, at_ + i);
      ++equal_;
    }
  }

  std::string difference(const grammar::TokenMask& ours, std::size_t position) {
    if (!masks_.is_open()) return "";
    grammar::TokenMask theirs(ours.size());
    masks_.seekg(static_cast<std::streamoff>(position * bytes_));
    masks_.read(reinterpret_cast<char*>(theirs.data()), static_cast<std::streamsize>(bytes_));
    return list(", allowed here only", ours, theirs) + list(", allowed by XGrammar only", theirs, ours);
  }

  std::string list(const char* what, const grammar::TokenMask& these, const grammar::TokenMask& others) {
    std::size_t count = 0;
    std::string out;
    for (int32_t id = 0; id < golden_["vocab_size"].get<int32_t>(); ++id) {
      if (!grammar::allows(these, id) || grammar::allows(others, id)) continue;
      if (++count > kListed) continue;
      out += fmt::format(" {}={}", id, quoted(tokenizer_->has_token(id) ? tokenizer_->token_bytes(id) : ""));
    }
    return count == 0 ? "" : fmt::format("{} {} tokens:{}", what, count, out);
  }

  json golden_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::vector<int32_t> end_ids_;
  std::ifstream masks_;
  std::size_t bytes_ = 0, at_ = 0, equal_ = 0;  // of a mask; the first of the walk in the file; masks so far
};

TEST_P(PeerMasksTest, TheSameAtEachToken) {
  const std::string name = "tokenizers/" + GetParam();
  if (golden(".json").empty()) GTEST_SKIP() << "no masks; MILLRACE_GRAMMAR_MASKS can name a folder of them";
  if (!fs::exists(test_data(name) / "tokenizer.json")) GTEST_SKIP() << no_test_data(name);
  load(test_data(name));
  std::size_t walks = 0;
  for (const json& one : golden_["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const auto compiled = compile(one);
    EXPECT_TRUE(compiled.ok()) << compiled.status().to_string();
    std::shared_ptr<grammar::Masks> masks;
    if (compiled.ok()) masks = std::make_shared<grammar::Masks>((*compiled)->grammar, (*compiled)->trie);
    for (const json& walk : one["walks"]) {
      EXPECT_FALSE(walk.contains("refused")) << "a text of the case is not of XGrammar's language";
      if (masks) follow(masks, walk);
      at_ += walk["masks"].size();
      ++walks;
    }
  }
  std::printf("%s: %zu grammars, %zu walks, %zu of %zu masks compared and equal\n", GetParam().c_str(),
              golden_["cases"].size(), walks, equal_, at_);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, PeerMasksTest,
                         testing::Values("deepseek_v3", "gpt2", "gpt4o", "llama3", "mistral_nemo", "qwen2_5", "qwen3"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace millrace
