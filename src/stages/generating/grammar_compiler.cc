#include "stages/generating/grammar_compiler.h"

#include <chrono>

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/structural_tag.h"
#include "grammar/token_mark.h"
#include "text/tools/dialect.h"

namespace millrace {
namespace {

// On the compiling thread. Each of these bounds its input, its depth and its states, since a client wrote the source:
// that is what keeps one grammar from holding up those behind it.
Result<grammar::Rules> parse(const GrammarKey& source, const std::vector<std::string>& markers) {
  switch (source.kind) {
    case wire::GrammarKind::kJsonSchema: {
      ASSIGN_OR_RETURN(grammar::Rules document, grammar::parse_json_schema(source.text));
      return grammar::behind_reasoning(std::move(document), markers, source.start);
    }
    case wire::GrammarKind::kEbnf:
      return grammar::parse_ebnf(source.text);
    case wire::GrammarKind::kRegex: {
      ASSIGN_OR_RETURN(grammar::ExprPtr body,
                       grammar::parse_regex(source.text, grammar::RegexMatch::kFull,
                                            [](const auto& set) { return grammar::chars(set); }));
      return grammar::behind_reasoning(grammar::Rules{{std::move(body)}, {"regex"}, {}}, markers, source.start);
    }
    case wire::GrammarKind::kStructuralTag:
      return grammar::parse_structural_tag(source.text, markers, source.start);
  }
  return invalid_argument("the kind of grammar is {}; wanted 0 to 3", static_cast<int>(source.kind));
}

// Added tokens stand for no text that a grammar may want: most are control tokens, and what the others spell can be
// spelled with ordinary ones. They are marks, which only structural tags and reasoning know.
std::vector<std::string> vocabulary(const Tokenizer& tokenizer, int32_t vocab_size) {
  std::vector<std::string> out(static_cast<std::size_t>(vocab_size));
  // The embedding may have more rows than the tokenizer has tokens: those ids stay empty, and no grammar allows them.
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    if (!tokenizer.has_token(id)) continue;
    std::string bytes = tokenizer.token_bytes(id);
    // Marks are written with bytes that no UTF-8 text has. A token with such a byte, which byte-level vocabularies have
    // for broken text, could otherwise be taken for a mark.
    if (grammar::has_mark_byte(bytes)) continue;
    out[static_cast<std::size_t>(id)] = tokenizer.is_added(id) ? grammar::token_mark(bytes) : std::move(bytes);
  }
  return out;
}

// The added tokens that a tag may name: none that begins or ends a turn.
std::vector<std::string> markers_of(const Tokenizer& tokenizer, int32_t vocab_size) {
  std::vector<std::string> out;
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    if (!tokenizer.has_token(id) || !tokenizer.is_added(id)) continue;
    std::string text = tokenizer.token_bytes(id);
    // Control tokens are not for a grammar to name, but for those around calls and reasoning.
    if (!text.empty() && (is_chat_marker(text) || !tokenizer.is_control(id))) out.push_back(std::move(text));
  }
  return out;
}

}  // namespace

GrammarKey grammar_key(const wire::SamplingParams& sampling) {
  using wire::ReasoningDialect, grammar::TextStart;
  GrammarKey key{sampling.grammar->kind, sampling.grammar->text, TextStart::kContent};
  // EBNF describes all that is generated: it may have the tags of reasoning itself.
  if (key.kind == wire::GrammarKind::kEbnf || !sampling.parsing) return key;
  const wire::OutputParsing& parsing = *sampling.parsing;
  // The start is part of the key only where it matters, so that requests share a grammar as often as they can.
  if (parsing.reasoning == ReasoningDialect::kNone) return key;
  const bool open = parsing.reasoning_open || parsing.reasoning == ReasoningDialect::kThinkOpen;
  key.start = open ? TextStart::kReasons : TextStart::kMayReason;
  return key;
}

Result<std::shared_ptr<const grammar::Grammar>> compile_grammar(const GrammarKey& key,
                                                                const std::vector<std::string>& markers) {
  const auto rules = parse(key, markers);
  // Whatever the parser's code was, kTooLarge too: it is a fault of the request.
  Status status = rules.status();
  if (status.ok()) {
    auto compiled = grammar::Grammar::compile(*rules);
    if (compiled.ok()) return compiled;
    status = compiled.status();
  }
  return invalid_argument("{}", status.message());
}

GrammarCompiler::GrammarCompiler(std::shared_ptr<const Tokenizer> tokenizer, int32_t vocab_size,
                                 std::vector<int32_t> end_ids)
    : tokenizer_(std::move(tokenizer)),
      vocab_size_(vocab_size),
      end_ids_(std::move(end_ids)),
      thread_([this] { compile_main(); }) {}

GrammarCompiler::~GrammarCompiler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

// Failures are kept as grammars are: a client that sends a bad schema again and again costs one compilation.
std::optional<GrammarCompiler::Compiled> GrammarCompiler::compile(ReqId id, const GrammarKey& key) {
  if (const auto known = by_key_.find(key); known != by_key_.end()) {
    // Moves the entry to the beginning; iterators, and so by_key_, stay good.
    kept_.splice(kept_.begin(), kept_, known->second);
    ++found_;
    return kept_.front().grammar;
  }
  // Sources are counted, not requests: any number may wait for one that is under way already.
  const auto asked = asked_.find(key);
  if (asked == asked_.end() && asked_.size() >= kMaxCompiling) {
    return Compiled(error(StatusCode::kResourceExhausted,
                          "{} grammars wait to be compiled, and more may not wait; try again later", asked_.size()));
  }
  ++waiting_;
  if (asked != asked_.end()) {
    asked->second.push_back(id);
    return std::nullopt;
  }
  // The entry exists from here until take_finished() or drop(), so no key is queued twice.
  asked_[key].push_back(id);
  {
    const std::lock_guard lock(mutex_);
    queued_.push_back(key);
  }
  changed_.notify_one();
  return std::nullopt;
}

void GrammarCompiler::drop(ReqId id) {
  for (auto one = asked_.begin(); one != asked_.end();) {
    auto& [key, ids] = *one;
    const std::size_t gone = std::erase(ids, id);
    waiting_ -= gone;
    if (gone != 0 && ids.empty()) {
      const std::lock_guard lock(mutex_);
      // One under way is not queued any more: its entry stays, since take_finished() will look for it.
      if (std::erase(queued_, key) != 0) {
        one = asked_.erase(one);
        continue;
      }
    }
    ++one;
  }
}

std::vector<std::pair<ReqId, GrammarCompiler::Compiled>> GrammarCompiler::take_finished() {
  std::vector<Finished> finished;
  {
    const std::lock_guard lock(mutex_);
    // The lock covers the swap alone. Everything else here belongs to the worker's thread.
    finished.swap(finished_);
  }
  std::vector<std::pair<ReqId, Compiled>> out;
  for (Finished& one : finished) {
    auto asked = asked_.extract(one.key);
    CHECK(!asked.empty());  // from compile() on, and each key is queued once
    for (const ReqId id : asked.mapped()) out.emplace_back(id, one.grammar);
    waiting_ -= asked.mapped().size();
    ++compiled_;
    compile_seconds_ += one.seconds;
    keep(std::move(one.key), std::move(one.grammar));
  }
  return out;
}

void GrammarCompiler::keep(Key key, Compiled grammar) {
  // The states that matching adds later are not counted: each runner bounds them by itself (state_table.h).
  const std::size_t bytes = key.text.size() + (grammar.ok() ? (*grammar)->grammar->memory_bytes() : 0);
  kept_.push_front({std::move(key), std::move(grammar), bytes});
  by_key_[kept_.front().key] = kept_.begin();
  kept_bytes_ += bytes;
  // At least the newest stays, however large it is: the requests that waited for it are about to use it.
  while (kept_.size() > kMaxKeptGrammars || (kept_bytes_ > kMaxKeptGrammarBytes && kept_.size() > 1)) {
    kept_bytes_ -= kept_.back().bytes;
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

void GrammarCompiler::describe(std::vector<wire::Metric>& metrics) const {
  metrics.push_back({"grammar_compiles_total", static_cast<double>(compiled_)});
  metrics.push_back({"grammar_cache_hits_total", static_cast<double>(found_)});
  metrics.push_back({"grammar_compile_seconds_total", compile_seconds_});
  metrics.push_back({"grammar_compiling_requests", static_cast<double>(waiting_)});
}

void GrammarCompiler::compile_main() {
  using Seconds = std::chrono::duration<double>;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queued_.empty(); });
    // What is queued stays undone. A compilation under way is waited for by the destructor; its limits keep that short.
    if (stopping_) return;
    Key key = std::move(queued_.front());
    queued_.pop_front();
    // Neither compile() nor take_finished() waits for a compilation.
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    Compiled grammar = make(key);
    const double seconds = Seconds(std::chrono::steady_clock::now() - begin).count();
    lock.lock();
    finished_.push_back({std::move(key), std::move(grammar), seconds});
  }
}

GrammarCompiler::Compiled GrammarCompiler::make(const Key& key) {
  // With the first grammar: most servers never have one, and the tree of a large vocabulary takes a while. A failure is
  // kept, and each grammar gets it.
  if (trie_.ok() && *trie_ == nullptr) {
    trie_ = grammar::TokenTrie::build(vocabulary(*tokenizer_, vocab_size_));
    markers_ = markers_of(*tokenizer_, vocab_size_);
  }
  ASSIGN_OR_RETURN(auto grammar, compile_grammar(key, markers_));
  ASSIGN_OR_RETURN(auto trie, trie_);
  return std::make_shared<const grammar::TokenGrammar>(
      grammar::TokenGrammar{std::move(grammar), std::move(trie), end_ids_});
}

}  // namespace millrace
