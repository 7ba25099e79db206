// TextPlan: where each stage of the text pipeline runs, from its spec (pipelines/text.yaml, or another of that shape)
// and the command line.
//
// A text pipeline is one stage of the worker text.generate, whose result and stream go to one of text.detokenize, a
// terminal. Their messages are typed (wire/messages.h): token batches and text batches, because each token passes
// there. `host` says which of the two another host runs (app/text_leader.h); all replicas of one stage share it.
//
// Thread safety: values; free functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "pipeline/spec.h"

namespace millrace {

inline constexpr std::string_view kGenerateWorker = "text.generate";
inline constexpr std::string_view kDetokenizeWorker = "text.detokenize";

// One stage, or one of several equal schedulers.
struct TextSeat {
  std::string name;   // "scheduler", "scheduler-1", "detokenizer": in heartbeats and messages to people
  std::string stage;  // as the spec calls it: in registrations
  bool scheduler = false;
  int replica = 0;
  std::string process;  // kFrontProcess: a thread of the front
  std::string host;     // of somebody else, who joins; empty: this one

  bool here() const { return process == kFrontProcess && !remote(); }
  bool remote() const { return !host.empty(); }
};

struct TextPlan {
  std::vector<TextSeat> seats;  // the schedulers by number, then the detokenizer

  const TextSeat& detokenizer() const { return seats.back(); }
  int schedulers() const { return static_cast<int>(seats.size()) - 1; }
  bool over_hosts() const;
  // nullptr: there is none.
  const TextSeat* find(std::string_view stage, uint32_t replica) const;
  const TextSeat* find(std::string_view name) const;
  // The processes beside the front on this host, each once.
  std::vector<std::string> children() const;
  std::vector<TextSeat> seats_of(std::string_view process) const;
};

// True where the first stage speaks of text workers: such a spec must be one of the text engine.
bool is_text_pipeline(const PipelineSpec& spec);

// `dp` replicas where it is not 0, else as many as the spec says. `single`: everything of this host in the front.
// kInvalidArgument, with file and line, where the shape is another, or where `dp` is given for a scheduler that joins.
Result<TextPlan> plan_text(const PipelineSpec& spec, const std::string& file, int dp, bool single);

// The pipeline of `millrace serve --model DIR`: pipelines/text.yaml, built in.
std::string_view builtin_text_pipeline();

}  // namespace millrace
