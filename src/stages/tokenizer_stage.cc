#include "stages/tokenizer_stage.h"

namespace millrace {
namespace {

Status shutting_down() { return Status(StatusCode::kUnavailable, "the server is shutting down"); }

}  // namespace

TokenizerStage::TokenizerStage(std::shared_ptr<const Tokenizer> tokenizer, std::optional<ChatTemplate> chat_template,
                               std::size_t max_prompt_bytes)
    : encoder_(std::move(tokenizer), std::move(chat_template), max_prompt_bytes), jobs_(kMaxTokenizerJobs) {}

TokenizerStage::~TokenizerStage() { refuse_all(); }

void TokenizerStage::refuse_all() {
  jobs_.close();
  while (auto job = jobs_.pop(0)) (*job)(false);
}

void TokenizerStage::run() {
  while (!stop_requested()) {
    auto job = jobs_.pop(kHeartbeatMs);
    if (job) (*job)(true);
    if (!job && jobs_.closed()) break;
  }
  refuse_all();
}

Status TokenizerStage::post(Prompt prompt, Done done) {
  return jobs_.push([this, prompt = std::move(prompt), done = std::move(done)](bool run) {
    done(run ? encode(prompt) : Result<Ids>(shutting_down()));
  });
}

Status TokenizerStage::post_decode(Ids ids, bool skip_special_tokens, std::function<void(Result<std::string>)> done) {
  return jobs_.push([this, ids = std::move(ids), skip_special_tokens, done = std::move(done)](bool run) {
    if (!run) return done(shutting_down());
    if (Status status = encoder_.check_ids(ids); !status.ok()) return done(status);
    done(encoder_.tokenizer().decode(ids, skip_special_tokens));
  });
}

}  // namespace millrace
