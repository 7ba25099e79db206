#include "app/backend.h"

#include <cstdio>

namespace millrace {
namespace {

constexpr int kBeforeQueue = 1024;  // requests that may be in the tokenizer or on their way to the scheduler's queue

}  // namespace

Backend::Backend(const ServeOptions& options, TextSide& side)
    : options_(options), side_(side), tokenizer_(side.tokenizer, side.chat_template, side.max_prompt_bytes) {}

void Backend::make_front(std::unique_ptr<Inbox> inbox) {
  front_ = std::make_unique<Front>(FrontOptions{.max_requests = options_.model.max_running_requests +
                                                                options_.model.max_queued_requests + kBeforeQueue,
                                                .request_timeout_s = options_.request_timeout_s},
                                   side_.facts, tokenizer_, std::move(inbox));
}

void Backend::start_front() {
  tokenizer_thread_ = std::thread([this] { tokenizer_.run(); });
  front_thread_ = std::thread([this] { front_->run(); });
}

void Backend::stop_front() {
  tokenizer_.close();
  tokenizer_.request_stop();
  front_->request_stop();
  if (tokenizer_thread_.joinable()) tokenizer_thread_.join();
  if (front_thread_.joinable()) front_thread_.join();
}

void print_error(const Status& status) {
  std::fprintf(stderr, "millrace: error: %s\n", status.message().c_str());
  std::fflush(stderr);
}

}  // namespace millrace
