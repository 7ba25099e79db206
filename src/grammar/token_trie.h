// TokenTrie: the byte strings of a vocabulary as a prefix tree in one array, depth first, so that a walk with a
// grammar's states reads memory in sequence and leaves out a subtree by one addition.
//
// Most tokens of a vocabulary are plain text: whole characters, at most kMaxPlainCharacters, none of which a JSON
// string has to escape. Where a grammar takes any such text, as inside a JSON string, they are allowed together by a
// precomputed mask, and only the tree of the others is walked (the idea of llguidance's slices). Where such a text
// leads back to the same state, what the others begin with does not matter either: those with the same rest behind
// their plain characters, such as all that end in a quotation mark and a comma, are allowed together.
//
// Owner: the runner, one for a vocabulary. Thread safety: immutable after build.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace::grammar {

// One bit for each token id.
using TokenMask = std::vector<uint64_t>;

inline bool allows(const TokenMask& mask, int32_t id) {
  return (mask[static_cast<std::size_t>(id) >> 6] >> (id & 63) & 1) != 0;
}
inline void allow(TokenMask& mask, int32_t id) { mask[static_cast<std::size_t>(id) >> 6] |= uint64_t{1} << (id & 63); }
inline void forbid(TokenMask& mask, int32_t id) {
  mask[static_cast<std::size_t>(id) >> 6] &= ~(uint64_t{1} << (id & 63));
}

inline constexpr std::size_t kMaxPlainCharacters = 16;  // of a token that counts as plain text

// A byte of plain text that is a character by itself.
inline bool is_plain(uint8_t byte) { return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\'; }

class TokenTrie {
 public:
  struct Node {
    uint32_t skip = 1;  // nodes of its subtree, itself included
    int32_t token = -1;
    uint16_t depth = 0;  // bytes before this one
    uint8_t byte = 0;
  };

  // `tokens[id]` is the bytes of a token; empty: no grammar can produce it (a special token, a hole). Of several tokens
  // with the same bytes all are allowed. kInvalidArgument: a token of more than 2^16 - 1 bytes.
  static Result<std::shared_ptr<const TokenTrie>> build(std::span<const std::string> tokens);

  int32_t vocab_size() const { return vocab_size_; }
  std::span<const Node> all() const { return all_; }
  std::span<const Node> not_plain() const { return not_plain_; }
  const TokenMask& plain() const { return plain_; }
  // Of these, the ones of at most so many characters, from 1 to kMaxPlainCharacters.
  const TokenMask& plain_up_to(std::size_t characters) const {
    return characters < kMaxPlainCharacters ? shorter_plain_[characters - 1] : plain_;
  }
  // The tokens that are not plain, by the rest behind their plain characters: a node's token is the number of a group.
  std::span<const Node> rests() const { return rests_; }
  struct WithRest {
    int32_t id;
    int32_t first;  // byte of the plain characters; -1: there are none
  };
  std::span<const WithRest> group(int32_t number) const {
    const auto at = static_cast<std::size_t>(number);
    return std::span(with_rest_).subspan(group_begin_[at], group_begin_[at + 1] - group_begin_[at]);
  }
  static constexpr int32_t kNoRest = 0;  // the group of long plain text, which has no node
  // The tokens that begin with a byte: those of plain text (empty where there are none), and the subtree of all.
  struct FirstByte {
    TokenMask plain;
    std::span<const Node> all;
  };
  const FirstByte& beginning_with(uint8_t byte) const { return by_first_[byte]; }
  // Pairs of a token and another with the same bytes, which the tree does not hold.
  std::span<const std::pair<int32_t, int32_t>> twins() const { return twins_; }
  std::string_view bytes(int32_t id) const { return bytes_[static_cast<std::size_t>(id)]; }

 private:
  TokenTrie() = default;
  void group_by_rest(const std::vector<int32_t>& not_plain);

  int32_t vocab_size_ = 0;
  std::vector<std::string> bytes_;
  std::vector<Node> all_, not_plain_, rests_;
  std::vector<WithRest> with_rest_;  // group by group
  std::vector<std::size_t> group_begin_;
  TokenMask plain_;
  std::array<TokenMask, kMaxPlainCharacters - 1> shorter_plain_;
  std::array<FirstByte, 256> by_first_;
  std::vector<std::pair<int32_t, int32_t>> twins_;
};

}  // namespace millrace::grammar
