// What is wrong with a pipeline's file, collected while it is read: up to kMaxSpecErrors lines "FILE:LINE: ...".
// Of spec_parse.cc and spec_check.cc alone. Thread safety: one thread.
#pragma once

#include <string>
#include <utility>

#include "pipeline/spec.h"

namespace millrace {

class SpecErrors {
 public:
  explicit SpecErrors(std::string file) : file_(std::move(file)) {}

  template <typename... Args>
  void add(int line, fmt::format_string<Args...> format, Args&&... args) {
    ++count_;
    if (count_ > kMaxSpecErrors) return;
    if (count_ > 1) text_ += '\n';
    text_ += fmt::format("{}:{}: {}", file_, line, fmt::format(format, std::forward<Args>(args)...));
  }
  int count() const { return count_; }
  Status status() const {
    if (count_ == 0) return ok_status();
    const int more = count_ - kMaxSpecErrors;
    return Status(StatusCode::kInvalidArgument, more > 0 ? fmt::format("{}\n... and {} more", text_, more) : text_);
  }

 private:
  const std::string file_;
  std::string text_;
  int count_ = 0;
};

// What the parts must be together: names, the graph, placement. Also where the file has errors already.
void check_pipeline(const PipelineSpec& spec, const Library& library, SpecErrors& errors);
// Of it, the layer splits: `layers` and `layers_to`. Stages have names of their own.
void check_chains(const PipelineSpec& spec, SpecErrors& errors);
// Of it, the stages that compute prompts for others: `prefill_from`.
void check_prefill(const PipelineSpec& spec, SpecErrors& errors);
// Of it, the stages that encode media for others: `encode_from`.
void check_encode(const PipelineSpec& spec, SpecErrors& errors);

}  // namespace millrace
