// Workers with a stream as input: toy.talk (generates codes from thoughts as they arrive), toy.decode and toy.tone
// (terminals that stream text and sound to the client). Chunks, the end of the stream and the payload may arrive in any
// order among each other; each worker goes on as soon as its inputs allow it.
#include <deque>
#include <map>
#include <optional>

#include "examples/workers/args.h"
#include "examples/workers/makers.h"

namespace millrace::examples {
namespace {

struct Inputs {
  std::optional<Value> payload;
  std::deque<Value> chunks;             // not consumed yet
  int64_t count = 0;                    // chunks consumed
  bool done = false;                    // the stream has ended
  std::string text;                     // toy.decode
  uint64_t hash = 0xCBF29CE484222325u;  // toy.tone: of all samples
};

// Keeps the inputs of each request, and calls advance() after each event.
class StreamWorker : public Worker {
 public:
  explicit StreamWorker(CommonArgs common) : common_(std::move(common)) {}

  void start(ReqId id, Value payload, Emit& emit) override {
    const Status status = common_.prepare(payload);
    if (!status.ok()) return emit.fail(id, status);
    Inputs& in = live_[id];
    in.payload = std::move(payload);
    report(id, advance(id, in, emit), emit);
  }
  void chunk(ReqId id, const std::string&, Value chunk, Emit& emit) override {
    Inputs& in = live_[id];
    in.chunks.push_back(std::move(chunk));
    common_.rest();
    report(id, advance(id, in, emit), emit);
  }
  void chunks_done(ReqId id, const std::string&, Emit& emit) override {
    Inputs& in = live_[id];
    in.done = true;
    report(id, advance(id, in, emit), emit);
  }
  void drop(ReqId id) override { live_.erase(id); }

 protected:
  virtual Status advance(ReqId id, Inputs& in, Emit& emit) = 0;

 private:
  static void report(ReqId id, const Status& status, Emit& emit) {
    if (!status.ok()) emit.fail(id, status);
  }
  const CommonArgs common_;
  std::map<ReqId, Inputs> live_;
};

std::string key_of(const Value& payload) {
  const Value* key = payload.find("key");
  const std::string* text = key ? key->get<std::string>() : nullptr;
  return text ? *text : "";
}

Result<int64_t> in_order(const Value& chunk, int64_t wanted) {
  ASSIGN_OR_RETURN(const int64_t index, int_of(chunk, "index", -1, 0, INT64_MAX));
  if (index == wanted) return index;
  return internal_error("chunk {} came; wanted chunk {}", index, wanted);
}

// Needs its payload for each chunk.
class Talk : public StreamWorker {
  using StreamWorker::StreamWorker;
  Status advance(ReqId id, Inputs& in, Emit& emit) override {
    if (!in.payload) return ok_status();
    const std::string key = key_of(*in.payload);
    for (; !in.chunks.empty(); in.chunks.pop_front(), ++in.count) {
      const Value& thought = in.chunks.front();
      ASSIGN_OR_RETURN(const int64_t index, in_order(thought, in.count));
      ASSIGN_OR_RETURN(const int64_t token, int_of(thought, "token", 0, 0, 25));
      ASSIGN_OR_RETURN(const SharedTensor* row, tensor_of(thought, "row", DType::kU8, 1));
      Value chunk;
      chunk.set("index", index);
      chunk.set("codes", make_tensor(DType::kI32, {4}, speech_codes(fnv(key), token, row->view().as<uint8_t>())));
      emit.chunk(id, std::move(chunk));
    }
    if (!in.done) return ok_status();
    Value out;
    out.set("key", key);
    out.set("count", in.count);
    emit.result(id, std::move(out));
    return ok_status();
  }
};

// Text as it comes; the result when the payload is there and, where text was wanted, the stream has ended.
class Decode : public StreamWorker {
  using StreamWorker::StreamWorker;
  Status advance(ReqId id, Inputs& in, Emit& emit) override {
    for (; !in.chunks.empty(); in.chunks.pop_front(), ++in.count) {
      RETURN_IF_ERROR(in_order(in.chunks.front(), in.count).status());
      ASSIGN_OR_RETURN(const int64_t token, int_of(in.chunks.front(), "token", 0, 0, 25));
      const std::string letter(1, static_cast<char>('a' + token));
      in.text += letter;
      Value chunk;
      chunk.set("text", letter);
      emit.chunk_to(id, "", std::move(chunk), "text");
    }
    if (!in.payload) return ok_status();
    const bool streamed = wants(*in.payload, "text");
    if (streamed && !in.done) return ok_status();
    ASSIGN_OR_RETURN(const SharedTensor* tokens, tensor_of(*in.payload, "tokens", DType::kI32, 1));
    std::string text;
    for (const int32_t token : tokens->view().as<int32_t>()) text += static_cast<char>('a' + token);
    if (streamed && text != in.text) {
      return internal_error("'{}' was streamed; the result says '{}'", in.text, text);
    }
    Value out;
    out.set("text", text);
    out.set("prompt", text_of(*in.payload));
    out.set("key", key_of(*in.payload));
    emit.result(id, std::move(out));
    return ok_status();
  }
};

class Tone : public StreamWorker {
 public:
  Tone(CommonArgs common, int64_t samples) : StreamWorker(std::move(common)), samples_(samples) {}

 private:
  Status advance(ReqId id, Inputs& in, Emit& emit) override {
    for (; !in.chunks.empty(); in.chunks.pop_front(), ++in.count) {
      ASSIGN_OR_RETURN(const int64_t index, in_order(in.chunks.front(), in.count));
      ASSIGN_OR_RETURN(const SharedTensor* codes, tensor_of(in.chunks.front(), "codes", DType::kI32, 1));
      if (codes->shape[0] < 2) return invalid_argument("{} codes; wanted at least 2", codes->shape[0]);
      SharedTensor pcm = make_tensor(DType::kI16, {samples_}, tone(codes->view().as<int32_t>(), samples_));
      in.hash = fnv(pcm.bytes.span(), in.hash);
      Value chunk;
      chunk.set("index", index);
      chunk.set("pcm", std::move(pcm));
      emit.chunk_to(id, "", std::move(chunk), "audio");
    }
    if (!in.payload || !in.done) return ok_status();
    ASSIGN_OR_RETURN(const int64_t count, int_of(*in.payload, "count", -1, 0, INT64_MAX));
    if (count != in.count) return internal_error("{} codes came; {} were sent", in.count, count);
    Value out;
    out.set("samples", in.count * samples_);
    out.set("hash", hex(in.hash));
    emit.result(id, std::move(out));
    return ok_status();
  }
  const int64_t samples_;
};

}  // namespace

MadeWorker make_talk(const Value& args) {
  ASSIGN_OR_RETURN(CommonArgs common, CommonArgs::parse(args));
  return std::unique_ptr<Worker>(std::make_unique<Talk>(std::move(common)));
}

MadeWorker make_decode(const Value& args) {
  ASSIGN_OR_RETURN(CommonArgs common, CommonArgs::parse(args));
  return std::unique_ptr<Worker>(std::make_unique<Decode>(std::move(common)));
}

MadeWorker make_tone(const Value& args) {
  ASSIGN_OR_RETURN(CommonArgs common, CommonArgs::parse(args));
  ASSIGN_OR_RETURN(const int64_t samples, int_of(args, "samples", 240, 1, 1 << 20));
  return std::unique_ptr<Worker>(std::make_unique<Tone>(std::move(common), samples));
}

}  // namespace millrace::examples
