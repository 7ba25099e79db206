// A tokenizer as tables: what a GGUF file holds of it, without the file. The composition in app/ carries them between
// formats/ and here.
//
// Of the pre-tokenizer a GGUF file holds a name alone; the table in tokenizer_tables.cc has the published pattern of
// each name that this build knows. All others are refused with the list: a wrong pattern gives wrong ids without a
// sign.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace millrace {

// The numbers are GGUF's.
enum class TokenKind : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct TokenizerTables {
  std::string model;  // "gpt2": byte-level BPE with merges; "llama": SentencePiece BPE with scores
  std::string pre;    // of gpt2: the pre-tokenizer's name; "default" for llama
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;       // as many as tokens, or none: all normal
  std::vector<float> scores;        // of llama: as many as tokens
  std::vector<std::string> merges;  // of gpt2: "left right", best first
  std::optional<int32_t> bos, eos, pad, unk;
  std::optional<bool> add_bos, add_eos;  // absent: as the model and pre usually do
  bool add_space_prefix = true;          // of llama
  std::string chat_template;             // empty: none
};

// The tokenizer.json and tokenizer_config.json that mean the same. Errors: kInvalidArgument names the table and what is
// wrong with it, kUnsupported an unknown model or pre.
struct TokenizerJson {
  std::string tokenizer;
  std::string config;
};
Result<TokenizerJson> tokenizer_json_of(const TokenizerTables& tables);
Result<std::shared_ptr<const Tokenizer>> tokenizer_from_tables(const TokenizerTables& tables);

// The other way round, for writing a file: `rows` is the number of the model's embedding rows; ids without a token
// become unused "[PADn]". kUnsupported: the tokenizer does something that the tables cannot hold; the error names it.
Result<TokenizerTables> tables_of_tokenizer(std::string_view tokenizer_json, std::string_view config_json,
                                            int64_t rows);
// From `dir`/tokenizer.json and tokenizer_config.json.
Result<TokenizerTables> load_tokenizer_tables(const std::string& dir, int64_t rows);

// "gpt-2, llama-bpe, ..."
std::string known_pre_tokenizers();

// For the two files that implement this. What a name of a pre-tokenizer stands for, in tokenizer.json's spelling.
struct PreTokenizerRules {
  std::string_view name;
  std::string_view json;
  bool nfc = false;            // the text is normalized first
  bool ignore_merges = false;  // a word that is a token is that token
  bool add_bos = false;        // where the file has no such field
};
const PreTokenizerRules* find_pre_tokenizer(std::string_view name);
// The rules whose pre-tokenizer, normalizer and ignore_merges are these (as JSON); nullptr: none.
const PreTokenizerRules* match_pre_tokenizer(std::string_view pre_tokenizer, std::string_view normalizer,
                                             bool ignore_merges);

// SentencePiece merges as the published tokenizer.json files of such models have them: every split of a token into two
// tokens, best score first, equals by the ids of token and halves. kTooLarge: over `most`, which a file with the same
// long token many times would have.
Result<std::vector<std::pair<std::string_view, std::string_view>>> merges_of_scores(const TokenizerTables& tables,
                                                                                    std::size_t most = kMaxMerges);

}  // namespace millrace
