#include "runner/grammar_masks.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runner/masked_row.h"

namespace millrace {

GrammarMasks::Table& GrammarMasks::table_of(const std::shared_ptr<const grammar::TokenGrammar>& grammar) {
  Table& table = tables_[grammar.get()];
  if (!table.masks) {
    table.grammar = grammar;
    table.masks = std::make_shared<grammar::Masks>(grammar->grammar, grammar->trie);
  }
  table.used = batch_;
  return table;
}

Result<grammar::TokenMask> GrammarMasks::of(const SequenceStep& step) {
  const std::shared_ptr<const grammar::TokenGrammar>& grammar = step.sampling.grammar;
  Table& table = table_of(grammar);
  auto known = readers_.find(step.request);
  if (known != readers_.end() && known->second.key != grammar.get()) {  // the id came again, with another grammar
    readers_.erase(known);
    known = readers_.end();
  }
  if (known == readers_.end()) {
    known = readers_.emplace(step.request, Reader{grammar.get(), grammar::Matcher(table.masks)}).first;
  }
  Reader& reader = known->second;
  reader.used = batch_;
  const std::optional<int32_t> last = step.last_is_generated ? std::optional(step.tokens.back()) : std::nullopt;
  ASSIGN_OR_RETURN(grammar::TokenMask mask, reader.matcher.mask(step.generated.span(), last, grammar->end_ids));
  if (std::ranges::any_of(mask, [](uint64_t word) { return word != 0; })) return mask;
  return invalid_argument(
      "no token of the vocabulary goes on with the text as the grammar wants it, behind {} tokens; wanted a grammar "
      "that this vocabulary can spell",
      step.generated.size() + (last ? 1 : 0));
}

Status GrammarMasks::fill(const SequenceStep& step, grammar::TokenMask& mask) {
  if (!step.sample || !step.sampling.grammar) return ok_status();
  ASSIGN_OR_RETURN(mask, of(step));
  return ok_status();
}

std::vector<int32_t> GrammarMasks::forced_behind(const SequenceStep& step, int32_t token) {
  std::vector<int32_t> run;
  const auto known = readers_.find(step.request);
  if (known == readers_.end() || known->second.key != step.sampling.grammar.get()) return run;
  const std::vector<int32_t>& ends = step.sampling.grammar->end_ids;
  grammar::Matcher ahead = known->second.matcher;
  while (std::cmp_less(run.size(), step.forced_limit) && std::ranges::find(ends, token) == ends.end()) {
    const Result<grammar::TokenMask> mask = ahead.mask_behind(token, ends);
    const std::optional<int32_t> only = mask.ok() ? only_token(*mask) : std::nullopt;
    if (!only) break;
    run.push_back(token = *only);
  }
  return run;
}

void GrammarMasks::end_batch() {
  std::size_t bytes = 0;
  for (const auto& [key, table] : tables_) bytes += table.masks->memory_bytes();
  while (bytes > kMaxMaskBytes) {
    const auto oldest = std::ranges::min_element(tables_, {}, [](const auto& entry) { return entry.second.used; });
    bytes -= oldest->second.masks->memory_bytes();
    std::erase_if(readers_, [&](const auto& entry) { return entry.second.key == oldest->first; });
    tables_.erase(oldest);
  }
  if (++batch_ <= kKeptBatches) return;
  const uint64_t least = batch_ - kKeptBatches;
  std::erase_if(readers_, [&](const auto& entry) { return entry.second.used < least; });
  std::erase_if(tables_, [&](const auto& entry) { return entry.second.used < least; });
}

}  // namespace millrace
