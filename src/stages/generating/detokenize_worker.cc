// detokenize: token deltas to text deltas, or the ids of a payload to their text.
#include <map>
#include <optional>
#include <utility>

#include "stages/generating/token_text.h"
#include "stages/generating/token_values.h"
#include "stages/generating/workers.h"

namespace millrace {
namespace {

class DetokenizeWorker : public Worker {
 public:
  DetokenizeWorker(std::shared_ptr<const Tokenizer> tokenizer, const Library::WorkerSeat& seat)
      : tokenizer_(std::move(tokenizer)), to_client_(seat.to_client), streams_(seat.streams) {}

  void tokens(ReqId id, const std::string&, wire::TokenDelta delta, Emit& emit) override {
    say(id, hear(id, lives_[id], delta, emit), emit);
  }

  void chunks_done(ReqId id, const std::string&, Emit& emit) override {
    Life& life = lives_[id];
    life.streamed = life.done = true;
    say(id, conclude(id, life, emit), emit);
  }

  // The result of a stage that streams comes behind the end of its stream; without any, its ids are all there is.
  void start(ReqId id, Value payload, Emit& emit) override {
    say(id, payload_came(id, lives_[id], std::move(payload), emit), emit);
  }

  void drop(ReqId id) override { lives_.erase(id); }

  bool describe(wire::StageStatus& status) const override {
    status.steps = deltas_;
    status.running = static_cast<int32_t>(lives_.size());
    status.metrics = {{"detokenizer_states", static_cast<double>(lives_.size())},
                      {"detokenizer_tokens_total", static_cast<double>(tokens_)},
                      {"detokenizer_text_stops_total", static_cast<double>(text_stops_)}};
    return true;
  }

 private:
  struct Life {
    std::optional<TokenText> text;
    std::string all;        // the text so far
    int64_t heard = 0;      // ids, those behind an end by text included
    wire::TextDelta held;   // tokens without text so far, their weight version, the usage after them
    bool ended = false;     // its last delta was said
    bool streamed = false;  // ids come by a stream
    bool done = false;      // which has ended
    std::optional<Value> payload;
  };

  static void say(ReqId id, const Status& status, Emit& emit) {
    if (!status.ok()) emit.fail(id, status);
  }

  Status hear(ReqId id, Life& life, wire::TokenDelta& delta, Emit& emit) {
    ++deltas_;
    life.streamed = true;
    life.heard += static_cast<int64_t>(delta.tokens.size());
    if (!life.text) {
      ASSIGN_OR_RETURN(life.text, TokenText::create(tokenizer_, delta.start.value_or(wire::DetokenizeStart())));
    }
    if (life.ended) return ok_status();
    wire::TextDelta out{
        .id = id, .accepted = delta.start.has_value(), .usage = delta.usage, .weight_version = delta.weight_version};
    RETURN_IF_ERROR(translate(life, delta, out));
    life.ended = out.finish.has_value();
    join_held(id, life, out, emit);
    const bool news = out.accepted || out.finish || !out.text.empty() || !out.logprobs.empty() ||
                      !out.prompt_logprobs.empty() || out.tokens.size() >= kMaxHeldTokens;
    if (news) {
      emit_text(id, std::move(out), emit);
    } else {
      life.held = std::move(out);
    }
    return ok_status();
  }

  // Adds the text of the delta's tokens, and the end where there is one.
  Status translate(Life& life, wire::TokenDelta& delta, wire::TextDelta& out) {
    TokenText::Piece piece = life.text->feed(delta.tokens, delta.finish.has_value());
    if (piece.finish && piece.finish->reason == wire::FinishReason::kError) {
      return Status(piece.finish->code, piece.finish->message);
    }
    tokens_ += piece.fed;
    life.all += piece.text;
    out.text = std::move(piece.text);
    out.tokens = std::move(delta.tokens);
    out.tokens.resize(piece.fed);
    out.logprobs = std::move(delta.logprobs);
    out.prompt_logprobs = std::move(delta.prompt_logprobs);
    if (!piece.finish) {
      out.finish = std::move(delta.finish);
      return ok_status();
    }
    text_stops_ += piece.finish->matched_text.has_value();
    out.finish = std::move(piece.finish);
    out.usage.completion_tokens = life.text->ids_fed();
    out.logprobs.resize(std::min(out.logprobs.size(), piece.fed));  // an end or stop token behind it is not reached
    return ok_status();
  }

  // What was held goes before `out`, in it where the weights are the same.
  void join_held(ReqId id, Life& life, wire::TextDelta& out, Emit& emit) {
    wire::TextDelta held = std::exchange(life.held, {});
    if (held.tokens.empty()) return;
    if (out.weight_version != held.weight_version && out.weight_version != 0) {
      return emit_text(id, std::move(held), emit);
    }
    out.weight_version = held.weight_version;
    held.tokens.insert(held.tokens.end(), out.tokens.begin(), out.tokens.end());
    out.tokens = std::move(held.tokens);
  }

  // Other stages take text as values.
  void emit_text(ReqId id, wire::TextDelta delta, Emit& emit) {
    if (!streams_) return;
    if (to_client_) return emit.text(id, std::move(delta));
    if (delta.text.empty()) return;
    Value out;
    out.set("text", std::move(delta.text));
    emit.chunk(id, std::move(out));
  }

  Status payload_came(ReqId id, Life& life, Value payload, Emit& emit) {
    life.payload = std::move(payload);
    if (life.payload->is<ValueMap>()) {
      RETURN_IF_ERROR(ids_of(*life.payload).status());
      if (!life.streamed) return translate_all(id, life, emit);
    } else if (!life.streamed) {
      return invalid_argument("the payload is a {}, and no tokens came before it; wanted a map with ids",
                              kind_name(*life.payload));
    }
    return conclude(id, life, emit);
  }

  Status translate_all(ReqId id, Life& life, Emit& emit) {
    ASSIGN_OR_RETURN(wire::DetokenizeStart start, read_detokenize_options(*life.payload));
    wire::TokenDelta delta{.id = id, .start = std::move(start)};
    ASSIGN_OR_RETURN(delta.tokens, ids_of(*life.payload));
    delta.finish.emplace();
    delta.usage.completion_tokens = static_cast<int32_t>(delta.tokens.size());
    RETURN_IF_ERROR(hear(id, life, delta, emit));
    life.done = true;
    return conclude(id, life, emit);
  }

  Status conclude(ReqId id, Life& life, Emit& emit) {
    if (!life.done || !life.payload) return ok_status();
    if (!life.payload->is<ValueMap>()) {
      emit.result(id, Value());  // the deltas told all
      return ok_status();
    }
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ids_of(*life.payload));
    if (std::cmp_not_equal(life.heard, ids.size())) {
      return internal_error("{} ids were streamed; the payload behind them has {}", life.heard, ids.size());
    }
    Value out = without(*life.payload, {kDetokenizeKey});
    out.set("text", std::move(life.all));
    emit.result(id, std::move(out));
    return ok_status();
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const bool to_client_;
  const bool streams_;
  std::map<ReqId, Life> lives_;
  uint64_t deltas_ = 0, tokens_ = 0, text_stops_ = 0;
};

}  // namespace

std::unique_ptr<Worker> make_detokenize_worker(std::shared_ptr<const Tokenizer> tokenizer,
                                               const Library::WorkerSeat& seat) {
  return std::make_unique<DetokenizeWorker>(std::move(tokenizer), seat);
}

}  // namespace millrace
