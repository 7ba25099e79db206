#include "grammar/token_trie.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "base/utf8.h"
#include "grammar/expr.h"

namespace millrace::grammar {
namespace {

// The plain characters that a text begins with.
struct PlainBeginning {
  std::size_t bytes = 0;
  std::size_t characters = 0;
};

PlainBeginning plain_beginning(std::string_view text) {
  PlainBeginning out;
  for (std::size_t at = 0; at < text.size(); ++out.characters) {
    const auto first = static_cast<uint8_t>(text[at]);
    // utf8_next() moves `at` over a complete character; a token that ends inside of one is not plain.
    if (first < 0x80 ? !is_plain(first) : utf8_next(text, at) < 0) break;
    out.bytes = first < 0x80 ? ++at : at;
  }
  return out;
}

// Of plain text; 0: it is none.
std::size_t plain_characters(std::string_view text) {
  const PlainBeginning plain = plain_beginning(text);
  return plain.bytes == text.size() && plain.characters <= kMaxPlainCharacters ? plain.characters : 0;
}

struct Entry {
  std::string_view bytes;
  int32_t token;
};

// Sorted by their bytes, which differ and are not empty.
std::vector<TokenTrie::Node> build_tree(const std::vector<Entry>& entries) {
  std::vector<TokenTrie::Node> nodes;
  std::vector<std::size_t> path;  // the nodes of the token before
  std::string_view before;
  const auto close = [&](std::size_t depth) {
    for (; path.size() > depth; path.pop_back()) {
      // The subtree is complete when the path leaves it: everything that was added since is below.
      nodes[path.back()].skip = static_cast<uint32_t>(nodes.size() - path.back());
    }
  };
  for (const auto& [bytes, token] : entries) {
    // Sorted entries share their beginnings with the one before: the path is cut back to what both have in common.
    const auto [differs, at] = std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end());
    CHECK(at != bytes.end());  // sorted, so no entry is a beginning of the one before it
    close(static_cast<std::size_t>(differs - before.begin()));
    for (std::size_t depth = path.size(); depth < bytes.size(); ++depth) {
      path.push_back(nodes.size());
      nodes.push_back({.depth = static_cast<uint16_t>(depth), .byte = static_cast<uint8_t>(bytes[depth])});
    }
    nodes[path.back()].token = token;
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
  for (TokenMask& mask : out->shorter_plain_) mask = out->plain_;
  std::vector<int32_t> sorted;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].size() > std::numeric_limits<uint16_t>::max()) {
      return invalid_argument("token {} has {} bytes; wanted at most {}", id, tokens[id].size(),
                              std::numeric_limits<uint16_t>::max());
    }
    if (!tokens[id].empty()) sorted.push_back(static_cast<int32_t>(id));
  }
  const auto bytes_of = [&](int32_t id) -> std::string_view { return tokens[static_cast<std::size_t>(id)]; };
  // Stable, so that of tokens with the same bytes the lowest id is the one in the tree, whatever the library.
  std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) { return bytes_of(a) < bytes_of(b); });
  std::vector<int32_t> different, not_plain;
  for (const int32_t id : sorted) {
    if (!different.empty() && bytes_of(different.back()) == bytes_of(id)) {
      out->twins_.emplace_back(different.back(), id);
      continue;
    }
    different.push_back(id);
    const std::size_t characters = plain_characters(bytes_of(id));
    if (characters == 0) {
      not_plain.push_back(id);
      continue;
    }
    allow(out->plain_, id);
    for (std::size_t most = characters; most < kMaxPlainCharacters; ++most) allow(out->shorter_plain_[most - 1], id);
  }
  const auto tree_of = [&](const std::vector<int32_t>& ids) {
    std::vector<Entry> entries;
    entries.reserve(ids.size());
    for (const int32_t id : ids) entries.push_back({bytes_of(id), id});
    return build_tree(entries);
  };
  out->all_ = tree_of(different);
  out->not_plain_ = tree_of(not_plain);
  out->group_by_rest(not_plain);
  // The nodes of depth 0: one for each first byte, as long as its subtree.
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

void TokenTrie::group_by_rest(const std::vector<int32_t>& not_plain) {
  std::map<std::string_view, std::vector<WithRest>> groups{{"", {}}};  // kNoRest comes first
  for (const int32_t id : not_plain) {
    const std::string_view text = bytes(id);
    const std::size_t plain = plain_beginning(text).bytes;
    groups[text.substr(plain)].push_back({id, plain > 0 ? static_cast<uint8_t>(text[0]) : -1});
  }
  std::vector<Entry> entries;
  for (const auto& [rest, ids] : groups) {
    if (!rest.empty()) entries.push_back({rest, static_cast<int32_t>(group_begin_.size())});
    group_begin_.push_back(with_rest_.size());
    with_rest_.insert(with_rest_.end(), ids.begin(), ids.end());
  }
  CHECK(with_rest_.size() == not_plain.size() && groups.begin()->first.empty());
  group_begin_.push_back(with_rest_.size());
  rests_ = build_tree(entries);
}

}  // namespace millrace::grammar
