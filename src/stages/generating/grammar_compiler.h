// GrammarCompiler: from what a client wrote to a grammar over the model's vocabulary, on a thread of its own, so that
// no step waits for it. Requests with the same source share one compilation, and its result is kept for later ones.
//
// Owner: the worker `generate`. Thread safety: the worker's thread only; the compiling thread is inside.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "grammar/reasoning.h"
#include "grammar/token_grammar.h"
#include "text/tokenizer.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr std::size_t kMaxKeptGrammars = 256;
inline constexpr std::size_t kMaxKeptGrammarBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxCompiling = 64;  // sources that wait or are being compiled

// What a grammar depends on besides its source's text.
struct GrammarKey {
  wire::GrammarKind kind = wire::GrammarKind::kJsonSchema;
  std::string text;
  grammar::TextStart start = grammar::TextStart::kContent;

  auto operator<=>(const GrammarKey&) const = default;
};
GrammarKey grammar_key(const wire::SamplingParams& sampling);

// A source as a grammar, over a vocabulary with these markers (grammar/structural_tag.h). kInvalidArgument: with the
// path or the offset of what is wrong or not served.
Result<std::shared_ptr<const grammar::Grammar>> compile_grammar(const GrammarKey& key,
                                                                const std::vector<std::string>& markers);

class GrammarCompiler {
 public:
  using Compiled = Result<std::shared_ptr<const grammar::TokenGrammar>>;

  // `vocab_size`: of the model's logits; `end_ids`: the tokens that end a sequence.
  GrammarCompiler(std::shared_ptr<const Tokenizer> tokenizer, int32_t vocab_size, std::vector<int32_t> end_ids);
  ~GrammarCompiler();

  // The grammar where it is known; nullopt: take_finished() will have it, for `id`. kResourceExhausted while
  // kMaxCompiling sources wait.
  std::optional<Compiled> compile(ReqId id, const GrammarKey& key);
  // What was compiled since the last call, for the requests that asked for it, in the order in which they came.
  std::vector<std::pair<ReqId, Compiled>> take_finished();
  // The request is gone. A source that no other one waits for is not compiled, unless that has begun.
  void drop(ReqId id);
  // Requests that wait for take_finished().
  std::size_t waiting() const { return waiting_; }
  // Whether take_finished() has nothing to wait for, not even for a source whose requests are gone.
  bool idle() const { return asked_.empty(); }

  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  using Key = GrammarKey;
  struct Kept {
    Key key;
    Compiled grammar;
    std::size_t bytes = 0;
  };
  struct Finished {
    Key key;
    Compiled grammar;
    double seconds = 0;
  };

  void compile_main();
  Compiled make(const Key& key);
  void keep(Key key, Compiled grammar);

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const int32_t vocab_size_;
  const std::vector<int32_t> end_ids_;

  // The worker's thread.
  std::list<Kept> kept_;  // the latest first
  std::map<Key, std::list<Kept>::iterator> by_key_;
  std::map<Key, std::vector<ReqId>> asked_;  // sources under way
  std::size_t kept_bytes_ = 0;
  std::size_t waiting_ = 0;
  uint64_t compiled_ = 0, found_ = 0;
  double compile_seconds_ = 0;

  // The compiling thread.
  Result<std::shared_ptr<const grammar::TokenTrie>> trie_{nullptr};  // made with the first grammar, as the next one
  std::vector<std::string> markers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Key> queued_;  // guarded by mutex_, like the next two
  std::vector<Finished> finished_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace millrace
