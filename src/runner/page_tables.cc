#include "runner/page_tables.h"

#include <algorithm>

namespace millrace {

void PageTables::clear() {
  tables_.clear();
  message_ = 0;
}

// Looked for once in kKeptMessages messages, by all at the same one.
void PageTables::begin_message() {
  if (++message_ % kKeptMessages != 0) return;
  std::erase_if(tables_, [this](const auto& entry) { return entry.second.named + kKeptMessages <= message_; });
}

void PageTables::reduce(wire::LayerSequence& sequence) {
  Table& table = tables_[sequence.request_id];
  const auto kept = std::ranges::mismatch(table.pages, sequence.pages).in1 - table.pages.begin();
  table.pages = sequence.pages;
  table.named = message_;
  sequence.pages.erase(sequence.pages.begin(), sequence.pages.begin() + kept);
  sequence.pages_kept = static_cast<int32_t>(kept);
}

Result<std::span<const int32_t>> PageTables::expand(const wire::LayerSequence& sequence) {
  Table& table = tables_[sequence.request_id];
  const auto kept = static_cast<std::size_t>(sequence.pages_kept);
  if (kept > table.pages.size()) {
    return invalid_argument("{} pages are kept of the table of request {}, which has {}", kept,
                            sequence.request_id.value, table.pages.size());
  }
  table.pages.resize(kept);
  table.pages.insert(table.pages.end(), sequence.pages.begin(), sequence.pages.end());
  table.named = message_;
  return std::span<const int32_t>(table.pages);
}

}  // namespace millrace
