// The toys that hear a stream: toy.talk (generates codes while it hears thoughts), toy.decode and toy.tone (terminals
// that stream text and sound to the client). Chunks, the end of the stream and the payload may come in any order among
// each other; each of them works when it has what it needs.
#include <deque>
#include <map>
#include <optional>

#include "stages/toys/toy_args.h"
#include "stages/toys/workers.h"

namespace millrace::toys {
namespace {

struct Heard {
  std::optional<Value> payload;
  std::deque<Value> chunks;             // not worked on yet
  int64_t count = 0;                    // chunks worked on
  bool done = false;                    // the stream has ended
  std::string text;                     // toy.decode
  uint64_t hash = 0xCBF29CE484222325u;  // toy.tone: of all samples
};

// Keeps what has come of each request, and asks `advance` after each news.
class Listener : public Worker {
 public:
  explicit Listener(ToyArgs toy) : toy_(std::move(toy)) {}

  void start(ReqId id, Value payload, Emit& emit) override {
    const Status status = toy_.suffer(payload);
    if (!status.ok()) return emit.fail(id, status);
    Heard& heard = live_[id];
    heard.payload = std::move(payload);
    say(id, advance(id, heard, emit), emit);
  }
  void chunk(ReqId id, const std::string&, Value chunk, Emit& emit) override {
    Heard& heard = live_[id];
    heard.chunks.push_back(std::move(chunk));
    toy_.rest();
    say(id, advance(id, heard, emit), emit);
  }
  void chunks_done(ReqId id, const std::string&, Emit& emit) override {
    Heard& heard = live_[id];
    heard.done = true;
    say(id, advance(id, heard, emit), emit);
  }
  void drop(ReqId id) override { live_.erase(id); }

 protected:
  virtual Status advance(ReqId id, Heard& heard, Emit& emit) = 0;

 private:
  static void say(ReqId id, const Status& status, Emit& emit) {
    if (!status.ok()) emit.fail(id, status);
  }
  const ToyArgs toy_;
  std::map<ReqId, Heard> live_;
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
class Talk : public Listener {
  using Listener::Listener;
  Status advance(ReqId id, Heard& heard, Emit& emit) override {
    if (!heard.payload) return ok_status();
    const std::string key = key_of(*heard.payload);
    for (; !heard.chunks.empty(); heard.chunks.pop_front(), ++heard.count) {
      const Value& thought = heard.chunks.front();
      ASSIGN_OR_RETURN(const int64_t index, in_order(thought, heard.count));
      ASSIGN_OR_RETURN(const int64_t token, int_of(thought, "token", 0, 0, 25));
      ASSIGN_OR_RETURN(const SharedTensor* row, tensor_of(thought, "row", DType::kU8, 1));
      Value chunk;
      chunk.set("index", index);
      chunk.set("codes", make_tensor(DType::kI32, {4}, speech_codes(fnv(key), token, row->view().as<uint8_t>())));
      emit.chunk(id, std::move(chunk));
    }
    if (!heard.done) return ok_status();
    Value out;
    out.set("key", key);
    out.set("count", heard.count);
    emit.result(id, std::move(out));
    return ok_status();
  }
};

// Text as it comes; the result when the payload is there and, where text was wanted, the stream has ended.
class Decode : public Listener {
  using Listener::Listener;
  Status advance(ReqId id, Heard& heard, Emit& emit) override {
    for (; !heard.chunks.empty(); heard.chunks.pop_front(), ++heard.count) {
      RETURN_IF_ERROR(in_order(heard.chunks.front(), heard.count).status());
      ASSIGN_OR_RETURN(const int64_t token, int_of(heard.chunks.front(), "token", 0, 0, 25));
      const std::string letter(1, static_cast<char>('a' + token));
      heard.text += letter;
      Value chunk;
      chunk.set("text", letter);
      emit.chunk_to(id, "", std::move(chunk), "text");
    }
    if (!heard.payload) return ok_status();
    const bool streamed = wants(*heard.payload, "text");
    if (streamed && !heard.done) return ok_status();
    ASSIGN_OR_RETURN(const SharedTensor* tokens, tensor_of(*heard.payload, "tokens", DType::kI32, 1));
    std::string text;
    for (const int32_t token : tokens->view().as<int32_t>()) text += static_cast<char>('a' + token);
    if (streamed && text != heard.text) {
      return internal_error("'{}' was streamed; the result says '{}'", heard.text, text);
    }
    Value out;
    out.set("text", text);
    out.set("prompt", text_of(*heard.payload));
    out.set("key", key_of(*heard.payload));
    emit.result(id, std::move(out));
    return ok_status();
  }
};

class Tone : public Listener {
 public:
  Tone(ToyArgs toy, int64_t samples) : Listener(std::move(toy)), samples_(samples) {}

 private:
  Status advance(ReqId id, Heard& heard, Emit& emit) override {
    for (; !heard.chunks.empty(); heard.chunks.pop_front(), ++heard.count) {
      ASSIGN_OR_RETURN(const int64_t index, in_order(heard.chunks.front(), heard.count));
      ASSIGN_OR_RETURN(const SharedTensor* codes, tensor_of(heard.chunks.front(), "codes", DType::kI32, 1));
      if (codes->shape[0] < 2) return invalid_argument("{} codes; wanted at least 2", codes->shape[0]);
      SharedTensor pcm = make_tensor(DType::kI16, {samples_}, tone(codes->view().as<int32_t>(), samples_));
      heard.hash = fnv(pcm.bytes.span(), heard.hash);
      Value chunk;
      chunk.set("index", index);
      chunk.set("pcm", std::move(pcm));
      emit.chunk_to(id, "", std::move(chunk), "audio");
    }
    if (!heard.payload || !heard.done) return ok_status();
    ASSIGN_OR_RETURN(const int64_t count, int_of(*heard.payload, "count", -1, 0, INT64_MAX));
    if (count != heard.count) return internal_error("{} codes came; {} were sent", heard.count, count);
    Value out;
    out.set("samples", heard.count * samples_);
    out.set("hash", hex(heard.hash));
    emit.result(id, std::move(out));
    return ok_status();
  }
  const int64_t samples_;
};

}  // namespace

MadeWorker make_talk(const Value& args) {
  ASSIGN_OR_RETURN(ToyArgs toy, ToyArgs::parse(args));
  return std::unique_ptr<Worker>(std::make_unique<Talk>(std::move(toy)));
}

MadeWorker make_decode(const Value& args) {
  ASSIGN_OR_RETURN(ToyArgs toy, ToyArgs::parse(args));
  return std::unique_ptr<Worker>(std::make_unique<Decode>(std::move(toy)));
}

MadeWorker make_tone(const Value& args) {
  ASSIGN_OR_RETURN(ToyArgs toy, ToyArgs::parse(args));
  ASSIGN_OR_RETURN(const int64_t samples, int_of(args, "samples", 240, 1, 1 << 20));
  return std::unique_ptr<Worker>(std::make_unique<Tone>(std::move(toy), samples));
}

}  // namespace millrace::toys
