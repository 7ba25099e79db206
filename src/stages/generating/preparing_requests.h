// PreparingRequests: requests whose grammar is being compiled or whose pictures are being encoded, both at the same
// time, on other threads. The scheduler does not know them yet.
//
// Owner: the worker `generate`. Thread safety: the worker's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "stages/generating/generate_state.h"
#include "stages/generating/grammar_compiler.h"
#include "stages/media/media_encoder.h"

namespace millrace {

class PreparingRequests {
 public:
  // Null: there are no grammars, or the model takes text only. `vocab_size`: of the model's logits; `end_ids`: the
  // tokens that end a sequence.
  PreparingRequests(std::shared_ptr<const Tokenizer> tokenizer, int32_t vocab_size, std::vector<int32_t> end_ids,
                    std::unique_ptr<MediaModel> media);

  // One that has all, or is refused: an error with the field that is wrong or not served.
  struct Prepared {
    PreparingState request;
    Status status;
  };
  // The request where it has all; nullopt: it waits, and take_prepared() will have it. Errors as above.
  Result<std::optional<PreparingState>> begin(PreparingState next);
  // Since the last call, in the order in which their last part came.
  std::vector<Prepared> take_prepared();
  // It was aborted, whether it waits or not. A grammar that compiles is not stopped: it stays for the next one. One
  // that only waits for its turn is left out.
  void drop(ReqId id);
  // All that wait: nothing more is prepared for them.
  std::vector<PreparingState> take_all();
  // Forgets features that are kept.
  void flush();

  bool empty() const { return waiting_.empty(); }
  // For the state that operators read.
  void describe(std::vector<PreparingRequest>& out, int64_t now_ms) const;
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  using Waiting = std::unordered_map<ReqId, PreparingState>;

  Status begin_grammar(PreparingState& next);
  Status begin_media(PreparingState& next);
  void drop_parts(ReqId id);
  void on_part(Waiting::iterator waiting, Status status, std::vector<Prepared>& out);

  const bool has_end_tokens_;
  std::optional<GrammarCompiler> grammars_;
  std::optional<MediaEncoder> media_;
  Waiting waiting_;
};

}  // namespace millrace
