// toy.think: generates a step of every live request with each tick, as a continuous batch does.
#include <algorithm>
#include <map>

#include "examples/workers/args.h"
#include "examples/workers/makers.h"
#include "examples/workers/workers.h"

namespace millrace::examples {
namespace {

class Think : public Worker {
 public:
  Think(CommonArgs common, int64_t steps, int64_t width) : common_(std::move(common)), steps_(steps), width_(width) {}

  void start(ReqId id, Value payload, Emit& emit) override {
    const Status status = common_.prepare(payload);
    if (!status.ok()) return emit.fail(id, status);
    const Value* key = payload.find("key");
    const std::string* text = key ? key->get<std::string>() : nullptr;
    if (!text) return emit.fail(id, invalid_argument("there is no key; wanted what toy.aggregate makes"));
    const Result<int64_t> steps = int_of(payload, "max_tokens", steps_, 0, kMaxSteps);
    if (!steps.ok()) return emit.fail(id, steps.status());
    live_[id] = {.seed = fnv(*text), .steps = static_cast<uint64_t>(*steps), .payload = std::move(payload)};
  }
  void drop(ReqId id) override { live_.erase(id); }

  int tick(int64_t now_ms, Emit& emit) override {
    if (live_.empty()) return kNever;
    if (now_ms < next_ms_) return static_cast<int>(next_ms_ - now_ms);
    next_ms_ = now_ms + common_.pace_ms;
    bool resting = false;
    for (auto it = live_.begin(); it != live_.end();) {
      const ReqId id = it->first;
      Thought& thought = it->second;
      const bool rests = emit.congested(id);
      resting = resting || rests;
      if (thought.done < thought.steps && !rests) {
        common_.rest();
        step(id, thought, emit);
      }
      if (thought.done < thought.steps) {
        ++it;
        continue;
      }
      emit.result(id, result(thought));
      it = live_.erase(it);
    }
    if (live_.empty()) return kNever;
    return resting ? std::max(kRestMs, static_cast<int>(common_.pace_ms)) : static_cast<int>(common_.pace_ms);
  }

 private:
  struct Thought {
    uint64_t seed = 0;
    uint64_t steps = 0;
    uint64_t done = 0;
    Value payload;
  };

  void step(ReqId id, Thought& thought, Emit& emit) {
    const uint64_t i = thought.done++;
    Value chunk;
    chunk.set("index", static_cast<int64_t>(i));
    chunk.set("token", thought_token(thought.seed, i));
    chunk.set("row", make_tensor(DType::kU8, {width_}, thought_row(thought.seed, i, width_)));
    emit.chunk(id, std::move(chunk));
  }

  static Value result(const Thought& thought) {
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < thought.steps; ++i) {
      tokens.push_back(static_cast<int32_t>(thought_token(thought.seed, i)));
    }
    Value out;
    for (const char* key : {"key", "text", "modalities"}) {
      if (const Value* value = thought.payload.find(key)) out.set(key, *value);
    }
    out.set("tokens", make_tensor(DType::kI32, {static_cast<int64_t>(tokens.size())}, tokens));
    return out;
  }

  const CommonArgs common_;
  const int64_t steps_;
  const int64_t width_;
  std::map<ReqId, Thought> live_;
  int64_t next_ms_ = 0;
};

}  // namespace

MadeWorker make_think(const Value& args) {
  ASSIGN_OR_RETURN(CommonArgs common, CommonArgs::parse(args));
  ASSIGN_OR_RETURN(const int64_t steps, int_of(args, "steps", 24, 0, kMaxSteps));
  ASSIGN_OR_RETURN(const int64_t width, int_of(args, "width", 32, 1, 1 << 20));
  return std::unique_ptr<Worker>(std::make_unique<Think>(std::move(common), steps, width));
}

}  // namespace millrace::examples
