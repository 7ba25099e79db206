#include "text/vocab.h"

#include "text/table_hash.h"
#include "text/tokenizer.h"

namespace millrace {
namespace {

constexpr size_t kFirstSlots = 64;
constexpr size_t kMaxVocabBytes = size_t{1} << 31;  // Entry::begin has 32 bits

uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

}  // namespace

void Vocab::reserve(size_t tokens, size_t bytes) {
  bytes_.reserve(bytes);
  entries_.reserve(tokens);
  size_t slots = kFirstSlots;
  while (slots < tokens * 2) slots *= 2;
  rehash(slots);
}

void Vocab::insert(uint64_t hash, int32_t id) {
  CHECK(count_ < slots_.size());  // an empty slot ends each search
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].id != kNone) at = (at + 1) & mask;
  slots_[at] = {tag_of(hash), id};
}

void Vocab::rehash(size_t slots) {
  if (slots <= slots_.size()) return;
  slots_.assign(slots, Slot{});
  for (size_t id = 0; id < entries_.size(); ++id) {
    if (entries_[id].present) insert(hash_bytes(view(entries_[id])), static_cast<int32_t>(id));
  }
}

Status Vocab::add(std::string_view text, int64_t id) {
  if (id < 0 || id >= kMaxVocab)
    return invalid_argument("the id of \"{}\" is {}; wanted 0..{}", text, id, kMaxVocab - 1);
  if (text.size() > kMaxTokenBytes) {
    return invalid_argument("the token with id {} has {} bytes; wanted at most {}", id, text.size(), kMaxTokenBytes);
  }
  if (bytes_.size() + text.size() > kMaxVocabBytes) {
    return invalid_argument("the tokens have more than {} bytes together", kMaxVocabBytes);
  }
  if (const int32_t other = find(text); other != kNone) {
    return invalid_argument("the token \"{}\" has the ids {} and {}; wanted one", text, other, id);
  }
  if (has(static_cast<int32_t>(id))) {
    return invalid_argument("the id {} belongs to \"{}\" and to \"{}\"; wanted one token an id", id,
                            this->text(static_cast<int32_t>(id)), text);
  }
  if ((count_ + 1) * 2 > slots_.size()) rehash(slots_.empty() ? kFirstSlots : slots_.size() * 2);
  if (static_cast<size_t>(id) >= entries_.size()) entries_.resize(static_cast<size_t>(id) + 1);
  Entry& entry = entries_[static_cast<size_t>(id)];
  entry.begin = static_cast<uint32_t>(bytes_.size());
  entry.size = static_cast<uint32_t>(text.size()) & 0x7FFFFFFF;
  entry.present = 1;
  bytes_.append(text);
  insert(hash_bytes(text), static_cast<int32_t>(id));
  ++count_;
  return ok_status();
}

int32_t Vocab::find(std::string_view text) const {
  if (slots_.empty()) return kNone;
  const uint64_t hash = hash_bytes(text);
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask; slots_[at].id != kNone; at = (at + 1) & mask) {
    if (slots_[at].tag == tag_of(hash) && view(entries_[static_cast<size_t>(slots_[at].id)]) == text)
      return slots_[at].id;
  }
  return kNone;
}

std::string_view Vocab::text(int32_t id) const {
  return has(id) ? view(entries_[static_cast<size_t>(id)]) : std::string_view();
}

}  // namespace millrace
