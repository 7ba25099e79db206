// The tokenizer stage: prompts to ids on a thread of its own, so that one huge prompt never holds up the HTTP thread.
//
// It lives in the front's process and takes its work by reference (prompt_encoder.h). Work is done in the order of
// arrival; each job's callback is called exactly once, on the stage's thread: what is still queued at a stop gets
// kUnavailable before run() returns, so that whoever owns the callbacks may go then. (Of a stage that never ran, the
// destructor says it.)
//
// Thread safety: post() from any thread; run() once, on the stage's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bounded_queue.h"
#include "stages/engine.h"
#include "stages/prompt_encoder.h"
#include "stages/stage.h"

namespace millrace {

inline constexpr std::size_t kMaxTokenizerJobs = 4096;

class TokenizerStage : public Stage {
 public:
  using Ids = PromptEncoder::Ids;
  using Done = std::function<void(Result<Ids>)>;

  // max_prompt_bytes: texts longer than this are refused before they are encoded (kTooLarge).
  TokenizerStage(std::shared_ptr<const Tokenizer> tokenizer, std::optional<ChatTemplate> chat_template,
                 std::size_t max_prompt_bytes);
  ~TokenizerStage() override;

  void run() override;
  // Queues the prompt. kResourceExhausted when kMaxTokenizerJobs wait already; `done` is not called then.
  Status post(Prompt prompt, Done done);
  Status post_decode(Ids ids, bool skip_special_tokens, std::function<void(Result<std::string>)> done);
  void close() { jobs_.close(); }
  // The bytes of one token; from any thread, at once.
  std::string token_bytes(int32_t id) const { return encoder_.tokenizer().token_bytes(id); }

  // What a job does, for tests.
  Result<Ids> encode(const Prompt& prompt) const { return encoder_.encode(prompt); }

 private:
  using Job = std::function<void(bool run)>;  // run = false: say kUnavailable

  void refuse_all();

  const PromptEncoder encoder_;
  BoundedQueue<Job> jobs_;
};

}  // namespace millrace
