#include "pipeline/testing/toy_pipeline.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "base/hash.h"
#include "payload/packing.h"

namespace millrace::testing {
namespace {

// Over every bit of a value.
uint64_t digest(const Value& value) {
  const auto lifted = lift(value);
  CHECK(lifted.ok());
  uint64_t hash = hash_name(lifted->tree);
  for (const wire::TensorInfo& tensor : lifted->tensors) {
    const SharedBytes& part = lifted->parts.at(tensor.part);
    const auto* bytes = reinterpret_cast<const char*>(part.data()) + tensor.offset;
    hash = mix_bits(hash ^ hash_name({bytes, static_cast<std::size_t>(tensor.size)}));
  }
  return hash;
}

uint64_t number(const Value& map, std::string_view key) {
  const Value* value = map.find(key);
  return value && value->is<int64_t>() ? static_cast<uint64_t>(*value->get<int64_t>()) : 0;
}

// {hash, blob}: a number that depends on the stage and all that it was given, and a tensor made from it.
Value work(std::string_view stage, uint64_t input, uint64_t blob) {
  const uint64_t hash = mix_bits(hash_name(stage) ^ input);
  Value out(ValueMap{{"hash", static_cast<int64_t>(hash)}, {"blob", static_cast<int64_t>(blob)}});
  if (blob == 0) return out;
  Buffer buffer(blob);
  for (std::size_t i = 0; i < blob; ++i) buffer.data()[i] = static_cast<std::byte>(mix_bits(hash + i) & 0xff);
  SharedTensor tensor{.dtype = DType::kU8, .shape = Shape{static_cast<int64_t>(blob)}};
  tensor.bytes = SharedBytes(std::move(buffer));
  out.set("bytes", std::move(tensor));
  return out;
}

// With the request's wishes carried along.
Value with_wishes(Value out, const Value& from) {
  for (const char* key : {"chunks", "image", "sound", "text", "audio"}) {
    if (const Value* value = from.find(key)) out.set(key, *value);
  }
  return out;
}

Value only(const Value& result) {  // what the encoders get
  Value out(ValueMap{{"hash", *result.find("hash")}, {"blob", *result.find("blob")}});
  if (const Value* bytes = result.find("bytes")) out.set("bytes", *bytes);
  return out;
}

Value merged(std::map<std::string, Value> payloads) {
  ValueMap parts;
  for (auto& [from, payload] : payloads) parts.emplace_back(from, std::move(payload));
  return parts;
}

// ---- the stages, as functions

Value one_to_one(const std::string& stage, const Value& in) {
  const Value& wishes = stage == "mm_aggregate" ? *in.find("preprocessing") : in;
  return with_wishes(work(stage, digest(in), number(wishes, "blob")), wishes);
}

std::vector<Value> thoughts(const Value& in) {
  std::vector<Value> out;
  for (uint64_t i = 0; i < number(in, "chunks"); ++i) {
    out.push_back(work("thinker", digest(in) + i, i % 2 == 0 ? number(in, "blob") / 2 : 0));
  }
  return out;
}

// What a stage must know of a chunk: not its bytes, which are a relay's.
struct Received {
  uint64_t digest = 0;
  uint64_t blob = 0;
};
Received receive(const Value& chunk) { return {digest(chunk), number(chunk, "blob")}; }

Value of_chunk(const std::string& stage, const Received& in) { return work(stage, in.digest, in.blob); }

Value of_all(const std::string& stage, const Value& payload, const std::vector<Received>& chunks) {
  uint64_t all = digest(payload);
  for (const Received& chunk : chunks) all = mix_bits(all ^ chunk.digest);
  return with_wishes(work(stage, all, number(payload, "blob")), payload);
}

std::vector<Received> receive(const std::vector<Value>& chunks) {
  std::vector<Received> out;
  for (const Value& chunk : chunks) out.push_back(receive(chunk));
  return out;
}

// ---- workers

class ToyWorker : public Worker {
 public:
  ToyWorker(std::string stage, std::function<int64_t(ReqId)> delay_ms)
      : stage_(std::move(stage)), delay_ms_(std::move(delay_ms)) {}

  void start(ReqId id, Value payload, Emit&) override {
    Task& task = tasks_[id];
    task.payload = std::move(payload);
    task.started = true;
  }
  void chunk(ReqId id, const std::string&, Value chunk, Emit&) override { tasks_[id].in.push_back(receive(chunk)); }
  void chunks_done(ReqId id, const std::string&, Emit&) override { tasks_[id].in_done = true; }
  void drop(ReqId id) override { tasks_.erase(id); }

  int tick(int64_t now_ms, Emit& emit) override {
    int64_t next = INT64_MAX;
    for (auto& [id, task] : tasks_) {
      if (!task.started || task.ended) continue;
      const bool event = !task.sent_start || task.sent < task.in.size() || task.in_done;
      if (!event) continue;
      if (task.due_ms == 0) task.due_ms = now_ms + delay_ms_(id);
      if (now_ms >= task.due_ms) {
        task.due_ms = 0;
        step(id, task, emit);
        if (!task.ended && (task.sent < task.in.size() || task.in_done)) next = std::min(next, now_ms + 1);
      } else {
        next = std::min(next, task.due_ms);
      }
    }
    return next == INT64_MAX ? kNever : static_cast<int>(next - now_ms);
  }

 private:
  struct Task {
    Value payload;
    bool started = false, sent_start = false, in_done = false, ended = false;
    std::vector<Received> in;
    std::size_t sent = 0;  // of `in`; of the thinker: of its thoughts
    int64_t due_ms = 0;
  };

  void step(ReqId id, Task& task, Emit& emit) {
    task.sent_start = true;
    if (stage_ == "thinker") {
      for (Value& thought : thoughts(task.payload)) emit.chunk(id, std::move(thought));
      end(id, task, emit, of_all(stage_, task.payload, {}));
    } else if (!streams()) {
      end(id, task, emit, one_to_one(stage_, task.payload));
    } else {
      for (; task.sent < task.in.size(); ++task.sent) emit.chunk(id, of_chunk(stage_, task.in[task.sent]));
      if (task.in_done) end(id, task, emit, of_all(stage_, task.payload, task.in));
    }
  }
  void end(ReqId id, Task& task, Emit& emit, Value result) {
    task.ended = true;
    emit.result(id, std::move(result));
  }
  bool streams() const { return stage_ == "decode" || stage_ == "talker_ar" || stage_ == "code2wav"; }

  const std::string stage_;
  const std::function<int64_t(ReqId)> delay_ms_;
  std::map<ReqId, Task> tasks_;
};

}  // namespace

Value ToyRequest::inputs() const {
  Value out = work("client", seed, static_cast<uint64_t>(blob));
  out.set("chunks", chunks);
  out.set("image", image ? 1 : 0), out.set("sound", sound ? 1 : 0);
  out.set("text", want_text ? 1 : 0), out.set("audio", want_audio ? 1 : 0);
  return out;
}

std::vector<std::string> ToyRequest::terminals() const {
  std::vector<std::string> out;
  if (want_text) out.push_back("decode");
  if (want_audio) out.push_back("code2wav");
  return out;
}

ToyAnswer evaluate(const ToyRequest& request) {
  const Value first = one_to_one("preprocessing", request.inputs());
  std::map<std::string, Value> parts = {{"preprocessing", first}};
  if (request.image) parts["image_encoder"] = one_to_one("image_encoder", only(first));
  if (request.sound) parts["audio_encoder"] = one_to_one("audio_encoder", only(first));
  const Value all = one_to_one("mm_aggregate", merged(std::move(parts)));
  const std::vector<Value> thought = thoughts(all);
  ToyAnswer answer;
  ValueMap results;
  if (request.want_text) {
    for (const Received& chunk : receive(thought)) answer.chunks["decode"].push_back(of_chunk("decode", chunk));
    results.emplace_back("decode", of_all("decode", of_all("thinker", all, {}), receive(thought)));
  }
  if (request.want_audio) {
    std::vector<Value> talk;
    for (const Received& chunk : receive(thought)) talk.push_back(of_chunk("talker_ar", chunk));
    for (const Received& chunk : receive(talk)) answer.chunks["code2wav"].push_back(of_chunk("code2wav", chunk));
    results.emplace_back("code2wav", of_all("code2wav", of_all("talker_ar", all, receive(thought)), receive(talk)));
  }
  answer.result = results.size() == 1 ? results[0].second : Value(results);
  return answer;
}

PipelineSpec toy_spec(const std::map<std::string, int>& replicas) {
  PipelineSpec spec{.name = "toy", .entry = "preprocessing"};
  const auto add = [&](StageSpec stage) {
    if (const auto found = replicas.find(stage.name); found != replicas.end()) stage.replicas = found->second;
    stage.worker = stage.process = stage.name;
    spec.stages.push_back(std::move(stage));
  };
  add({.name = "preprocessing",
       .next = {"image_encoder", "audio_encoder", "mm_aggregate"},
       .route = "encoders",
       .project_payload = {{"image_encoder", "only"}, {"audio_encoder", "only"}}});
  add({.name = "image_encoder", .next = {"mm_aggregate"}});
  add({.name = "audio_encoder", .next = {"mm_aggregate"}});
  add({.name = "mm_aggregate",
       .next = {"thinker", "talker_ar"},
       .route = "generators",
       .wait_for = {"preprocessing", "image_encoder", "audio_encoder"},
       .wait_for_rule = "sources",
       .merge = "merge"});
  add({.name = "thinker",
       .next = {"decode"},
       .route = "texts",
       .stream_to = {"talker_ar", "decode"},
       .stream_done_to = "listeners"});
  add({.name = "decode", .terminal = true, .can_accept_stream_before_payload = true});
  add({.name = "talker_ar", .next = {"code2wav"}, .stream_to = {"code2wav"}, .can_accept_stream_before_payload = true});
  add({.name = "code2wav", .terminal = true, .can_accept_stream_before_payload = true});
  return spec;
}

Library toy_rules() {
  using Names = std::vector<std::string>;
  Library library;
  library.routes["encoders"] = [](ReqId, const Value& v) -> Result<Names> {
    Names out = {"mm_aggregate"};
    if (number(v, "image") != 0) out.push_back("image_encoder");
    if (number(v, "sound") != 0) out.push_back("audio_encoder");
    return out;
  };
  library.routes["generators"] = [](ReqId, const Value& v) -> Result<Names> {
    return number(v, "audio") != 0 ? Names{"thinker", "talker_ar"} : Names{"thinker"};
  };
  library.routes["texts"] = [](ReqId, const Value&) -> Result<Names> { return Names{"decode"}; };
  library.routes["listeners"] = [](ReqId, const Value& v) -> Result<Names> {
    return number(v, "audio") != 0 ? Names{"talker_ar", "decode"} : Names{"decode"};
  };
  library.wait_rules["sources"] = [](ReqId, const std::string& from, const Value& v) -> Result<std::optional<Names>> {
    if (from != "preprocessing") return std::optional<Names>();
    Names out = {"preprocessing"};
    if (number(v, "image") != 0) out.push_back("image_encoder");
    if (number(v, "sound") != 0) out.push_back("audio_encoder");
    return std::optional<Names>(std::move(out));
  };
  library.merges["merge"] = [](std::map<std::string, Value> payloads) -> Result<Value> {
    return merged(std::move(payloads));
  };
  library.projections["only"] = [](const Value& v) -> Result<Value> { return only(v); };
  return library;
}

std::unique_ptr<Worker> make_toy_worker(const std::string& stage, std::function<int64_t(ReqId)> delay_ms) {
  return std::make_unique<ToyWorker>(stage, std::move(delay_ms));
}

}  // namespace millrace::testing
