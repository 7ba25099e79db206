// The tokenizer stage: prompts to ids on threads of its own, so that one huge prompt holds up neither the io thread
// nor the prompts behind it.
//
// It lives in the coordinator's process and takes its work by reference (prompt_encoder.h). Jobs begin in the order of
// arrival and run on up to `threads` threads, so a short one may overtake a long one; the requests of one prompt get
// their ids in order (prompt_encoding.h). Each request's callback is called exactly once, on one of these threads: what
// is still queued at a stop gets kUnavailable before run() returns, so that the owner of the callbacks may be destroyed
// then. (For a stage that never ran, the destructor calls them.) A request that ended while it was queued is not
// encoded.
//
// Owner: app/text_service.h. Thread safety: post() from any thread; run() once, on the stage's thread, which is one of
// the `threads`.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "stages/engine.h"
#include "stages/prompt_encoder.h"
#include "stages/prompt_encoding.h"
#include "stages/stage.h"
#include "text/tools/output_parser.h"

namespace millrace {

inline constexpr std::size_t kMaxTokenizerJobs = 4096;
// Of prompts that wait or are encoded. One prompt alone may be larger: the HTTP server's body limit bounds it.
inline constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20;
inline constexpr int kMaxTokenizerThreads = 4;
// min(kMaxTokenizerThreads, the processors that this process may use).
int default_tokenizer_threads();

class TokenizerStage : public Stage {
 public:
  using Ids = PromptEncoder::Ids;
  using Done = std::function<void(Result<Ids>)>;
  using Wanted = std::function<bool()>;

  // max_prompt_bytes: texts longer than this are refused before they are encoded (kTooLarge).
  TokenizerStage(std::shared_ptr<const Tokenizer> tokenizer, std::optional<ChatTemplate> chat_template,
                 std::size_t max_prompt_bytes, int threads = default_tokenizer_threads());
  ~TokenizerStage() override;

  void run() override;
  // Queues the prompt. kResourceExhausted when kMaxTokenizerJobs or kMaxTokenizerBytes wait already; `done` is not
  // called then. `wanted`, where there is one, is asked before the prompt is encoded: false gives `done` kCancelled.
  Status post(SharedPrompt prompt, Done done, Wanted wanted = {});
  Status post_decode(Ids ids, bool skip_special_tokens, std::function<void(Result<std::string>)> done);
  void close() { jobs_.close(); }
  // The bytes of one token; from any thread, at once.
  std::string token_bytes(int32_t id) const { return encoder_.tokenizer().token_bytes(id); }

  // Whether the prompt ends inside the reasoning, and true where it ends behind it; from any thread, at once.
  bool find_open_reasoning(const Ids& prompt, wire::OutputParsing& parsing) const {
    return millrace::find_open_reasoning(encoder_.tokenizer(), prompt, parsing);
  }

  // What a job does, for tests.
  Result<Ids> encode(const Prompt& prompt) const { return encoder_.encode(prompt); }

 private:
  using Job = std::function<void(bool run)>;  // run = false: answer with kUnavailable

  void work();
  void refuse_all();
  Status push(std::size_t bytes, Job job);

  const PromptEncoder encoder_;
  const int threads_;
  BoundedQueue<Job> jobs_;
  std::atomic<std::size_t> bytes_{0};  // of the jobs that wait or run
};

}  // namespace millrace
