#include "stages/tokenizer_stage.h"

#include <algorithm>
#include <utility>

#include "base/cpu_info.h"
#include "base/trace.h"

namespace millrace {
namespace {

Status shutting_down() { return Status(StatusCode::kUnavailable, "the server is shutting down"); }

}  // namespace

int default_tokenizer_threads() { return std::clamp(cpu_info().usable_cpus, 1, kMaxTokenizerThreads); }

TokenizerStage::TokenizerStage(std::shared_ptr<const Tokenizer> tokenizer, std::optional<ChatTemplate> chat_template,
                               std::size_t max_prompt_bytes, int threads)
    : encoder_(std::move(tokenizer), std::move(chat_template), max_prompt_bytes),
      threads_(threads),
      jobs_(kMaxTokenizerJobs) {
  CHECK(threads_ >= 1);
}

TokenizerStage::~TokenizerStage() { refuse_all(); }

void TokenizerStage::refuse_all() {
  jobs_.close();
  while (auto job = jobs_.pop(0)) (*job)(false);
}

void TokenizerStage::run() {
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads_; ++i) helpers.emplace_back([this] { work(); });
  work();
  for (std::thread& helper : helpers) helper.join();
  refuse_all();
}

void TokenizerStage::work() {
  trace::name_thread("tokenizer");
  while (!stop_requested()) {
    auto job = jobs_.pop(kHeartbeatMs);
    if (job) (*job)(true);
    if (!job && jobs_.closed()) break;
  }
}

// The bytes count until the job is done: what is being encoded is in memory too.
Status TokenizerStage::push(std::size_t bytes, Job job) {
  const std::size_t before = bytes_.fetch_add(bytes);
  Status status;
  if (before > 0 && before + bytes > kMaxTokenizerBytes) {
    status = error(StatusCode::kResourceExhausted,
                   "{} bytes of prompts wait for the tokenizer and this one has {}; the limit is {}; try again later",
                   before, bytes, kMaxTokenizerBytes);
  } else {
    status = jobs_.push([this, bytes, job = std::move(job)](bool run) {
      job(run);
      bytes_ -= bytes;
    });
  }
  if (!status.ok()) bytes_ -= bytes;
  return status;
}

Status TokenizerStage::post(SharedPrompt prompt, Done done, Wanted wanted) {
  PromptEncoding& encoding = prompt.encoding();
  if (!encoding.add({std::move(done), std::move(wanted)})) return ok_status();
  const Status status = push(prompt.bytes(), [this, prompt](bool run) {
    if (!run) return prompt.encoding().refuse(shutting_down());
    prompt.encoding().run([&] { return encode(*prompt); });
  });
  if (status.ok()) return ok_status();
  for (PromptEncoding::Waiter& waiter : encoding.cancel()) waiter.done(status);
  return status;
}

Status TokenizerStage::post_decode(Ids ids, bool skip_special_tokens, std::function<void(Result<std::string>)> done) {
  const std::size_t bytes = ids.size() * sizeof(int32_t);
  return push(bytes, [this, ids = std::move(ids), skip_special_tokens, done = std::move(done)](bool run) {
    if (!run) return done(shutting_down());
    if (Status status = encoder_.check_ids(ids); !status.ok()) return done(status);
    done(encoder_.tokenizer().decode(ids, skip_special_tokens));
  });
}

}  // namespace millrace
