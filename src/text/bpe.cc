#include "text/bpe.h"

#include <algorithm>
#include <functional>

#include "base/utf8.h"

namespace millrace {
namespace {

constexpr size_t kShortWord = 32;     // symbols; up to here a linear search for the best pair beats a heap
constexpr uint8_t kYes = 1, kNo = 2;  // the values of one_token_; 0 is not known yet

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeModel::Merge BpeModel::find_merge(int32_t left, int32_t right, bool guarded) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = merges_.size() - 1;
  // Open addressing with Fibonacci hashing: the constant is 2^64 divided by the golden ratio, and the product's upper
  // half is well mixed (Knuth, The Art of Computer Programming, volume 3, 6.4). At most half of the slots are taken, so
  // an empty one ends each search.
  for (size_t at = (key * 0x9E3779B97F4A7C15ULL >> 32) & mask; merges_[at].rank != kNoRank; at = (at + 1) & mask) {
    if (merges_[at].pair != key) continue;
    // A pair has one entry only, so nothing else could join it.
    if (guarded && control_merges_ && is_control(merges_[at].result)) return {};
    return {merges_[at].rank, merges_[at].result};
  }
  return {};
}

void BpeModel::encode(std::string_view word, bool guarded, BpeScratch& scratch, std::vector<int32_t>& out) const {
  if (word.empty()) return;
  // longest_word_ is of the tokens as the file spells them, which is never shorter than their bytes.
  if (word.size() <= longest_word_ && encode_as_one_token(word, guarded, scratch, out)) return;
  encode_parts(word, guarded, scratch, out);
}

bool BpeModel::encode_as_one_token(std::string_view word, bool guarded, BpeScratch& scratch,
                                   std::vector<int32_t>& out) const {
  const int32_t id = find_word(word);
  if (id == Vocab::kNone || (guarded && is_control(id))) return false;
  std::atomic<uint8_t>& memo = one_token_[static_cast<size_t>(id)];
  // Relaxed: the answer follows from the immutable model, so threads that race write the same value, and nothing else
  // is published by it.
  const uint8_t known = options_.ignore_merges ? kYes : memo.load(std::memory_order_relaxed);
  if (known == kNo) return false;
  if (known == kYes) {
    out.push_back(id);
    return true;
  }
  const size_t before = out.size();
  encode_parts(word, guarded, scratch, out);
  // A guarded word may have been kept from merges; only what holds for every word is remembered.
  const bool is_one_token = out.size() == before + 1 && out.back() == id;
  if (is_one_token || !guarded || !control_merges_) memo.store(is_one_token ? kYes : kNo, std::memory_order_relaxed);
  return true;
}

void BpeModel::byte_symbols(std::string_view word, bool guarded, std::vector<int32_t>& ids) const {
  bool unknown_before = false;
  for (const char c : word) {
    int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    // A control token of a single byte is as forbidden in untrusted text as a long one.
    if (id != Vocab::kNone && guarded && is_control(id)) id = Vocab::kNone;
    const bool unknown = id == Vocab::kNone;
    if (unknown) id = options_.unk_id;
    if (id != Vocab::kNone && !(unknown && unknown_before && options_.fuse_unk)) ids.push_back(id);
    unknown_before = unknown;
  }
}

int32_t BpeModel::find_character(std::string_view character) const {
  CHECK(!character.empty());
  const char32_t c = utf8_at(character, 0).value;
  // A table instead of a hash for nearly all characters of a text.
  return c < character_ids_.size() ? character_ids_[c] : vocab_.find(character);
}

void BpeModel::char_symbols(std::string_view word, bool guarded, std::vector<int32_t>& ids) const {
  // An unk token waits until the next known character, and byte-fallback tokens overtake it: that is what the reference
  // does.
  bool unk_waits = false;
  const auto settle = [&] {
    if (unk_waits) ids.push_back(options_.unk_id);
    unk_waits = false;
  };
  for (size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, utf8_at(word, at).size_bytes);
    at += character.size();
    const int32_t id = find_character(character);
    if (id != Vocab::kNone && !(guarded && is_control(id))) {
      settle();
      ids.push_back(id);
      continue;
    }
    const auto has_fallback = [&](char c) { return fallback_ids_[static_cast<unsigned char>(c)] != Vocab::kNone; };
    // All bytes or none: half a character's bytes would not decode to it.
    if (options_.byte_fallback && std::all_of(character.begin(), character.end(), has_fallback)) {
      for (const char c : character) ids.push_back(fallback_ids_[static_cast<unsigned char>(c)]);
      continue;
    }
    if (options_.unk_id == Vocab::kNone) continue;
    if (!options_.fuse_unk) settle();
    unk_waits = true;
  }
  settle();
}

// Never false for a pair that some merge joins, also after merges: a merged token has the first character of its left
// part and the last one of its right. It may be true for others, as classes are shared.
bool BpeModel::may_join(int32_t left, int32_t right) const {
  return (*junctions_)[static_cast<size_t>(last_class_[static_cast<size_t>(left)]) << 8 |
                       first_class_[static_cast<size_t>(right)]];
}

void BpeModel::encode_parts(std::string_view word, bool guarded, BpeScratch& scratch, std::vector<int32_t>& out) const {
  std::vector<int32_t>& ids = scratch.ids;
  ids.clear();
  if (options_.byte_level) {
    byte_symbols(word, guarded, ids);
  } else {
    char_symbols(word, guarded, ids);
  }
  for (size_t begin = 0, end = 0; begin < ids.size(); begin = end) {
    end = begin + 1;
    // Cut where no merge can cross: the stretches are independent, so the ids are those of the complete word, and
    // most stretches are short.
    while (end < ids.size() && may_join(ids[end - 1], ids[end])) ++end;
    if (end - begin == 1) {
      out.push_back(ids[begin]);
    } else if (end - begin <= kShortWord) {
      merge_short(begin, end, guarded, scratch, out);
    } else {
      merge_long(begin, end, guarded, scratch, out);
    }
  }
}

void BpeModel::merge_short(size_t begin, size_t end, bool guarded, BpeScratch& scratch,
                           std::vector<int32_t>& out) const {
  std::array<int32_t, kShortWord> ids;
  CHECK(begin < end && end - begin <= kShortWord && end <= scratch.ids.size());
  std::array<Merge, kShortWord> merges;  // merges[i] joins ids[i] and ids[i + 1]
  size_t count = end - begin;
  std::copy_n(scratch.ids.begin() + static_cast<ptrdiff_t>(begin), count, ids.begin());
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = find_merge(ids[i], ids[i + 1], guarded);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      // Strictly less: of equal ranks the leftmost wins.
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    ids[best] = merges[best].result;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1];
      merges[i - 1] = merges[i];
    }
    // Only the two pairs beside the merged one are new.
    if (best > 0) merges[best - 1] = find_merge(ids[best - 1], ids[best], guarded);
    if (best + 1 < count) merges[best] = find_merge(ids[best], ids[best + 1], guarded);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count));
}

// A doubly linked list of symbols and a heap of (rank, position). An entry is stale when the pair at its position has
// another rank by now; positions that were merged away have none.
void BpeModel::merge_long(size_t begin, size_t end, bool guarded, BpeScratch& s, std::vector<int32_t>& out) const {
  constexpr int32_t kEnd = -1;
  CHECK(begin < end && end <= s.ids.size());
  const auto count = static_cast<int32_t>(end - begin);
  const auto size = static_cast<size_t>(count);
  // In place: the stretch is not needed any more as it was.
  int32_t* ids = s.ids.data() + begin;
  s.ranks.assign(size, kNoRank);
  s.results.resize(size);
  s.previous.resize(size);
  s.next.resize(size);
  s.heap.clear();
  const auto refresh = [&](int32_t at, bool push) {
    const auto i = static_cast<size_t>(at);
    const Merge merge = s.next[i] == kEnd ? Merge{} : find_merge(ids[i], ids[static_cast<size_t>(s.next[i])], guarded);
    s.ranks[i] = merge.rank;
    s.results[i] = merge.result;
    if (merge.rank == kNoRank) return;
    // Rank above position: the smallest number is the lowest rank, and the leftmost among equals.
    s.heap.push_back(static_cast<uint64_t>(merge.rank) << 32 | static_cast<uint32_t>(at));
    if (push) std::push_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  };
  for (int32_t i = 0; i < count; ++i) {
    s.previous[static_cast<size_t>(i)] = i - 1;
    s.next[static_cast<size_t>(i)] = i + 1 < count ? i + 1 : kEnd;
    // Pushed without sifting; one make_heap() over all is linear.
    refresh(i, false);
  }
  std::make_heap(s.heap.begin(), s.heap.end(), std::greater<>());
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end(), std::greater<>());
    const uint64_t top = s.heap.back();
    s.heap.pop_back();
    const auto at = static_cast<size_t>(top & UINT32_MAX);
    if (s.ranks[at] != top >> 32) continue;
    CHECK(s.next[at] != kEnd);  // only a symbol with one at its right has a rank
    const auto removed = static_cast<size_t>(s.next[at]);
    ids[at] = s.results[at];
    s.next[at] = s.next[removed];
    // The entries of the right symbol's pair are stale from now on.
    s.ranks[removed] = kNoRank;
    if (s.next[at] != kEnd) s.previous[static_cast<size_t>(s.next[at])] = static_cast<int32_t>(at);
    if (s.previous[at] != kEnd) refresh(s.previous[at], true);
    refresh(static_cast<int32_t>(at), true);
  }
  for (int32_t i = 0; i != kEnd; i = s.next[static_cast<size_t>(i)]) out.push_back(ids[i]);
}

}  // namespace millrace
