#include "grammar/token_trie.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "grammar/expr.h"

namespace millrace::grammar {
namespace {

bool is_plain_text(std::string_view bytes) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < bytes.size(); ++count) {
    const auto first = static_cast<uint8_t>(bytes[at]);
    if (first < 0x80 ? !is_plain(first) : next_char(bytes, at) < 0) return false;
    if (first < 0x80) ++at;
  }
  return count <= kMaxPlainCharacters;
}

// `ids` are sorted by their bytes, which differ.
std::vector<TokenTrie::Node> build_tree(const std::vector<int32_t>& ids, std::span<const std::string> tokens) {
  std::vector<TokenTrie::Node> nodes;
  std::vector<std::size_t> path;  // the nodes of the token before
  std::string_view before;
  const auto close = [&](std::size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      nodes[path.back()].skip = static_cast<uint32_t>(nodes.size() - path.back());
    }
  };
  for (const int32_t id : ids) {
    const std::string_view bytes = tokens[static_cast<std::size_t>(id)];
    const auto [differs, at] = std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end());
    close(static_cast<std::size_t>(differs - before.begin()));
    for (std::size_t depth = path.size(); depth < bytes.size(); ++depth) {
      path.push_back(nodes.size());
      nodes.push_back({.depth = static_cast<uint16_t>(depth), .byte = static_cast<uint8_t>(bytes[depth])});
    }
    nodes[path.back()].token = id;
    before = bytes;
  }
  close(0);
  return nodes;
}

}  // namespace

Result<std::shared_ptr<const TokenTrie>> TokenTrie::build(std::span<const std::string> tokens) {
  std::shared_ptr<TokenTrie> out(new TokenTrie);
  out->vocab_size_ = static_cast<int32_t>(tokens.size());
  out->bytes_.assign(tokens.begin(), tokens.end());
  out->plain_.assign((tokens.size() + 63) / 64, 0);
  std::vector<int32_t> sorted;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() > std::numeric_limits<uint16_t>::max()) {
      return invalid_argument("token {} has {} bytes; wanted at most {}", id, tokens[id].size(),
                              std::numeric_limits<uint16_t>::max());
    }
    if (!tokens[id].empty()) sorted.push_back(static_cast<int32_t>(id));
  }
  const auto bytes_of = [&](int32_t id) -> std::string_view { return tokens[static_cast<std::size_t>(id)]; };
  std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) { return bytes_of(a) < bytes_of(b); });
  std::vector<int32_t> different, not_plain;
  for (const int32_t id : sorted) {
    if (!different.empty() && bytes_of(different.back()) == bytes_of(id)) {
      out->twins_.emplace_back(different.back(), id);
      continue;
    }
    different.push_back(id);
    if (is_plain_text(bytes_of(id))) {
      allow(out->plain_, id);
    } else {
      not_plain.push_back(id);
    }
  }
  out->all_ = build_tree(different, tokens);
  out->not_plain_ = build_tree(not_plain, tokens);
  for (std::size_t i = 0; i < out->all_.size(); i += out->all_[i].skip) {
    out->by_first_[out->all_[i].byte].all = std::span(out->all_).subspan(i, out->all_[i].skip);
  }
  for (const int32_t id : different) {
    if (!allows(out->plain_, id)) continue;
    TokenMask& mask = out->by_first_[static_cast<uint8_t>(bytes_of(id)[0])].plain;
    mask.resize(out->plain_.size());
    allow(mask, id);
  }
  return std::shared_ptr<const TokenTrie>(std::move(out));
}

}  // namespace millrace::grammar
