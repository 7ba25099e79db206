// A pipeline of eight stages whose every byte is known: the shape of the omni models (a per-request subset of two
// encoders and an aggregate that waits for exactly them, two generating stages joined by a stream, two terminals), with
// hashes for work. evaluate() computes the same by plain function calls, one after the other.
//
// For tests only. Thread safety: free functions without state; workers as in stages/worker.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "payload/value.h"
#include "pipeline/spec.h"
#include "stages/library.h"

namespace millrace::testing {

struct ToyRequest {
  uint64_t seed = 0;
  int64_t chunks = 0;     // that the thinker makes
  int64_t blob = 0;       // bytes of the tensors on the way; 0: no tensors
  bool image = false;     // needs that encoder
  bool sound = false;     // needs that one
  bool want_text = true;  // at least one of these
  bool want_audio = false;

  Value inputs() const;
  std::vector<std::string> terminals() const;
};

// What the client must get.
struct ToyAnswer {
  std::map<std::string, std::vector<Value>> chunks;  // by terminal
  Value result;
};
ToyAnswer evaluate(const ToyRequest& request);

// Stages with the given numbers of replicas; the others have one.
PipelineSpec toy_spec(const std::map<std::string, int>& replicas);
// Its rules.
Library toy_rules();
// Every call of the worker takes effect delay(id) ms later: slow stages.
std::unique_ptr<Worker> make_toy_worker(const std::string& stage, std::function<int64_t(ReqId)> delay_ms);

}  // namespace millrace::testing
