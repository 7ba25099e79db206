// Building a BpeModel from the vocabulary and the merges of a tokenizer.json.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/status.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace millrace {
namespace {

constexpr size_t kFirstMergeSlots = 64;
constexpr size_t kCharacterTable = 0x10000;

// ASCII keeps its own class; the rest share the upper half, with one class for U+2581, which begins nearly every word
// of a SentencePiece vocabulary and ends hardly any.
uint8_t class_of(char32_t c) {
  if (c < 0x80) return static_cast<uint8_t>(c);
  if (c == 0x2581) return 0x80;
  return static_cast<uint8_t>(0x81 + c % 0x7F);
}

}  // namespace

BpeModel::BpeModel(const Vocab& vocab, const BpeOptions& options, std::vector<uint8_t> control)
    : vocab_(vocab),
      options_(options),
      control_(std::move(control)),
      junctions_(std::make_unique<std::bitset<65536>>()) {
  const auto ids = static_cast<size_t>(vocab.size());
  control_.resize(ids);
  first_class_.resize(ids);
  last_class_.resize(ids);
  one_token_ = std::make_unique<std::atomic<uint8_t>[]>(ids);
  byte_ids_.fill(Vocab::kNone);
  fallback_ids_.fill(Vocab::kNone);
}

Result<std::unique_ptr<BpeModel>> BpeModel::create(const Vocab& vocab, const BpeOptions& options, JsonCursor merges,
                                                   std::vector<uint8_t> control) {
  std::unique_ptr<BpeModel> model(new BpeModel(vocab, options, std::move(control)));
  RETURN_IF_ERROR(model->index_words());
  if (!options.byte_level) model->index_characters();
  RETURN_IF_ERROR(model->read_merges(merges));
  CHECK(!model->merges_.empty());  // a lookup masks with its size
  return model;
}

Status BpeModel::index_words() {
  if (options_.byte_level) words_.reserve(vocab_.count(), 0);
  for (int32_t id = 0; id < vocab_.size(); ++id) {
    const std::string_view text = vocab_.text(id);
    if (text.empty()) continue;
    const auto i = static_cast<size_t>(id);
    longest_word_ = std::max(longest_word_, text.size());
    if (!options_.byte_level) {
      first_class_[i] = class_of(utf8_at(text, 0).value);
      last_class_[i] = class_of(utf8_at(text, utf8_before(text, text.size())).value);
      continue;
    }
    const std::optional<std::string> bytes = byte_level_bytes(text);
    if (bytes) {
      RETURN_IF_ERROR(words_.add(*bytes, id));
      first_class_[i] = static_cast<uint8_t>(bytes->front());
      last_class_[i] = static_cast<uint8_t>(bytes->back());
      if (bytes->size() == 1) byte_ids_[first_class_[i]] = id;
    }
  }
  return ok_status();
}

void BpeModel::index_characters() {
  character_ids_.assign(kCharacterTable, Vocab::kNone);
  for (int32_t id = 0; id < vocab_.size(); ++id) {
    const std::string_view text = vocab_.text(id);
    if (text.empty()) continue;
    const CodePoint c = utf8_at(text, 0);
    if (c.size_bytes == text.size() && c.value < kCharacterTable) character_ids_[c.value] = id;
  }
  for (unsigned byte = 0; byte < 256; ++byte) fallback_ids_[byte] = vocab_.find(fmt::format("<0x{:02X}>", byte));
}

void BpeModel::insert_merge(int32_t left, int32_t right, Merge merge) {
  CHECK(merge.rank != kNoRank);  // it marks an empty slot
  if ((merge_count_ + 1) * 2 > merges_.size()) {
    std::vector<MergeSlot> old(merges_.empty() ? kFirstMergeSlots : merges_.size() * 2);
    old.swap(merges_);
    merge_count_ = 0;
    for (const MergeSlot& slot : old) {
      if (slot.rank == kNoRank) continue;
      insert_merge(static_cast<int32_t>(slot.pair >> 32), static_cast<int32_t>(slot.pair & UINT32_MAX),
                   {slot.rank, slot.result});
    }
  }
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  const size_t mask = merges_.size() - 1;
  size_t at = (key * 0x9E3779B97F4A7C15ULL >> 32) & mask;
  while (merges_[at].rank != kNoRank && merges_[at].pair != key) at = (at + 1) & mask;
  if (merges_[at].rank == kNoRank) ++merge_count_;
  merges_[at] = {key, merge.rank, merge.result};  // of two equal pairs the later one counts, as in the reference
}

void BpeModel::note_junction(int32_t left, int32_t right) {
  CHECK(vocab_.has(left) && vocab_.has(right));
  junctions_->set(static_cast<size_t>(last_class_[static_cast<size_t>(left)]) << 8 |
                  first_class_[static_cast<size_t>(right)]);
}

Status BpeModel::add_merge(size_t index, std::string_view left, std::string_view right) {
  if (index >= kMaxMerges) return invalid_argument("model.merges has over {} entries", kMaxMerges);
  const int32_t left_id = vocab_.find(left);
  const int32_t right_id = vocab_.find(right);
  if (left_id == Vocab::kNone || right_id == Vocab::kNone) {
    return invalid_argument("model.merges[{}] joins \"{}\" and \"{}\"; wanted tokens of model.vocab, \"{}\" is none",
                            index, left, right, left_id == Vocab::kNone ? left : right);
  }
  std::string joined;
  joined.reserve(left.size() + right.size());
  joined.append(left).append(right);
  const int32_t result = vocab_.find(joined);
  if (result == Vocab::kNone) {
    return invalid_argument("model.merges[{}] makes \"{}\"; wanted a token of model.vocab", index, joined);
  }
  if (is_control(result)) control_merges_ = true;
  note_junction(left_id, right_id);
  insert_merge(left_id, right_id, {static_cast<uint32_t>(index), result});
  return ok_status();
}

namespace {

// One element of model.merges, a string "a b" or a pair ["a", "b"]. An empty `left` means a comment line.
Status read_merge(JsonCursor& merges, std::string& left, std::string& right) {
  if (merges.peek() == '"') {
    RETURN_IF_ERROR(merges.read_string(left));
    if (left.starts_with("#version")) {
      left.clear();
      return ok_status();
    }
    const size_t space = left.find(' ');
    if (space == std::string::npos || left.find(' ', space + 1) != std::string::npos) {
      return invalid_argument("it is \"{}\"; wanted two tokens and one space", left);
    }
    right.assign(left, space + 1);
    left.resize(space);
    return ok_status();
  }
  RETURN_IF_ERROR(merges.enter('[').with_prefix("wanted a string or a pair"));
  for (std::string* part : {&left, &right}) {
    ASSIGN_OR_RETURN(const bool present, merges.next_element());
    if (!present) return invalid_argument("it has fewer than 2 tokens; wanted a pair");
    RETURN_IF_ERROR(merges.read_string(*part));
  }
  ASSIGN_OR_RETURN(const bool third, merges.next_element());
  if (third) return invalid_argument("it has more than 2 tokens; wanted a pair");
  return ok_status();
}

}  // namespace

Status BpeModel::read_merges(JsonCursor& merges) {
  // A merge takes some twenty bytes in the file; this only avoids growing.
  merges_.assign(std::bit_ceil(std::max(kFirstMergeSlots, merges.size_bytes() / 16)), MergeSlot{});
  RETURN_IF_ERROR(merges.enter('[').with_prefix("model.merges"));
  std::string left, right;
  for (size_t index = 0;; ++index) {
    ASSIGN_OR_RETURN(const bool more, merges.next_element());
    if (!more) return ok_status();
    if (const Status status = read_merge(merges, left, right); !status.ok()) {
      return status.with_prefix(fmt::format("model.merges[{}]", index));
    }
    if (!left.empty()) RETURN_IF_ERROR(add_merge(index, left, right));
  }
}

}  // namespace millrace
