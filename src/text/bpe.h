// BpeModel: one pre-token ("word") to ids by byte pair encoding, with the options of tokenizer.json's "BPE" model.
//
// Source: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016), and the
// behaviour of Hugging Face tokenizers: of all adjacent pairs the one with the lowest rank is merged first, the
// leftmost among equals.
//
// Built by one thread, then immutable and shared by all threads, except for one_token_: a lock-free memo, one byte per
// token, of whether the merges turn the token's own text into just that token (most words of a text are single tokens).
// Time is O(n log n) in the length of a word.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/json_cursor.h"
#include "text/vocab.h"

namespace millrace {

struct BpeOptions {
  bool byte_level = false;     // words are raw bytes, tokens are written in the byte-level alphabet
  bool byte_fallback = false;  // an unknown character becomes its bytes' tokens <0x00>..<0xFF> when all exist
  bool fuse_unk = false;       // neighbouring unknown characters become one unk token
  bool ignore_merges = false;  // a word that is a token is that token, whatever the merges
  int32_t unk_id = Vocab::kNone;
};

// The buffers of one encode call, kept from word to word. One thread.
struct BpeScratch {
  std::vector<int32_t> ids;
  std::vector<uint32_t> ranks;
  std::vector<int32_t> results;
  std::vector<int32_t> previous;
  std::vector<int32_t> next;
  std::vector<uint64_t> heap;
};

class BpeModel {
 public:
  // `merges` stands at the array model.merges: strings "a b" or pairs ["a", "b"], best first. `control[id]` marks the
  // ids that a guarded word never yields. `vocab` must outlive the model. Errors name the merge: its index, text and
  // what is missing.
  static Result<std::unique_ptr<BpeModel>> create(const Vocab& vocab, const BpeOptions& options, JsonCursor merges,
                                                  std::vector<uint8_t> control);

  // Appends the ids of `word`. `guarded`: the word may hold untrusted text, so no control id comes out of it.
  void encode(std::string_view word, bool guarded, BpeScratch& scratch, std::vector<int32_t>& out) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct MergeSlot {
    uint64_t pair = UINT64_MAX;  // left id << 32 | right id
    uint32_t rank = kNoRank;
    int32_t result = Vocab::kNone;
  };
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t result = Vocab::kNone;
  };

  BpeModel(const Vocab& vocab, const BpeOptions& options, std::vector<uint8_t> control);
  Status index_words();
  void index_characters();
  Status read_merges(JsonCursor& merges);
  Status add_merge(size_t index, std::string_view left, std::string_view right);
  void insert_merge(int32_t left, int32_t right, Merge merge);
  void note_junction(int32_t left, int32_t right);

  bool is_control(int32_t id) const { return control_[static_cast<size_t>(id)] != 0; }
  int32_t find_word(std::string_view word) const { return options_.byte_level ? words_.find(word) : vocab_.find(word); }
  Merge find_merge(int32_t left, int32_t right, bool guarded) const;
  bool encode_as_one_token(std::string_view word, bool guarded, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void encode_parts(std::string_view word, bool guarded, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void byte_symbols(std::string_view word, bool guarded, std::vector<int32_t>& ids) const;
  void char_symbols(std::string_view word, bool guarded, std::vector<int32_t>& ids) const;
  int32_t find_character(std::string_view character) const;
  bool may_join(int32_t left, int32_t right) const;
  void merge_short(size_t begin, size_t end, bool guarded, BpeScratch& scratch, std::vector<int32_t>& out) const;
  void merge_long(size_t begin, size_t end, bool guarded, BpeScratch& scratch, std::vector<int32_t>& out) const;

  const Vocab& vocab_;
  BpeOptions options_;
  std::vector<uint8_t> control_;
  bool control_merges_ = false;  // some merge results in a control token
  Vocab words_;                  // byte_level: ids by raw bytes, for tokens inside the alphabet
  size_t longest_word_ = 0;
  std::array<int32_t, 256> byte_ids_{};      // byte_level: the token of each byte
  std::array<int32_t, 256> fallback_ids_{};  // byte_fallback: the token <0x..> of each byte
  std::vector<int32_t> character_ids_;       // tokens of one character below U+10000
  std::vector<MergeSlot> merges_;            // a power of two, at most half full
  size_t merge_count_ = 0;
  // Where the last character of a token and the first one of the next never meet inside a merge, no merge crosses.
  // Characters are folded into 256 classes; junctions_ has a bit for each pair of classes that meets in some merge.
  std::vector<uint8_t> first_class_;
  std::vector<uint8_t> last_class_;
  std::unique_ptr<std::bitset<65536>> junctions_;
  std::unique_ptr<std::atomic<uint8_t>[]> one_token_;  // by id of a word: a memo of whether its merges end in it
};

}  // namespace millrace
