#include "stages/transfer/prefill_server.h"

#include <utility>

#include "stages/stage.h"

namespace millrace::transfer {
namespace {

constexpr int kIdleMs = 200;  // without a message the server looks for what time asks for so often

}  // namespace

PrefillServer::PrefillServer(SchedulerOptions options, std::unique_ptr<Runner> runner, TransferLinks links,
                             wire::KvFormat format)
    : engine_(std::move(options), std::move(runner)),
      waker_(links.inbox->waker()),
      service_(engine_.scheduler(), std::move(links), std::move(format),
               PrefillJobs{.begin = [this](uint64_t job, const std::vector<int32_t>& tokens,
                                           const std::string& extra_key) { begin(job, tokens, extra_key); },
                           .cancel = [this](uint64_t job) { engine_.scheduler().abort(ReqId{job}, out_); }}) {}

// Nothing is drawn: the request ends when its last row is computed.
void PrefillServer::begin(uint64_t job, const std::vector<int32_t>& tokens, const std::string& extra_key) {
  wire::TokenizedRequest request{.id = ReqId{job}, .prompt = tokens};
  request.sampling.max_tokens = 0;
  request.extra_key = extra_key;
  engine_.scheduler().receive(std::move(request), out_);
}

void PrefillServer::report_ends() {
  for (const wire::TokenDelta& delta : std::exchange(out_, {})) {
    if (!delta.finish) continue;
    const bool failed = delta.finish->reason == wire::FinishReason::kError;
    service_.exports().on_job_end(delta.id.value,
                                  failed ? Status(delta.finish->code, delta.finish->message) : ok_status());
  }
}

void PrefillServer::run() {
  while (!stopping_) {
    const bool busy = engine_.scheduler().busy();
    service_.receive(busy ? 0 : service_.waits() ? kTransferRestMs : kIdleMs, monotonic_ms());
    engine_.step(out_);
    report_ends();
    service_.step(monotonic_ms());
  }
}

void PrefillServer::stop() {
  stopping_ = true;
  waker_->wake();
}

}  // namespace millrace::transfer
