// detokenize: token deltas to text deltas, or the ids of a payload to their text.
//
// Thread safety: none: its stage loop's thread.
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "stages/generating/parsed_text.h"
#include "stages/generating/token_text.h"
#include "stages/generating/token_values.h"
#include "stages/generating/workers.h"

namespace millrace {
namespace {

class DetokenizeWorker : public Worker {
 public:
  DetokenizeWorker(std::shared_ptr<const Tokenizer> tokenizer, const Library::WorkerSlot& slot, uint64_t text_checksum)
      : tokenizer_(std::move(tokenizer)),
        text_checksum_(text_checksum),
        to_client_(slot.to_client),
        streams_(slot.streams) {}

  void tokens(ReqId id, const std::string&, wire::TokenDelta delta, Emit& emit) override {
    report(id, handle(id, states_[id], delta, emit), emit);
  }

  void chunks_done(ReqId id, const std::string&, Emit& emit) override {
    DetokenizeState& state = states_[id];
    state.streamed = state.done = true;
    report(id, conclude(id, state, emit), emit);
  }

  // The result of a stage that streams comes behind the end of its stream; without any, its ids are all there is.
  void start(ReqId id, Value payload, Emit& emit) override {
    report(id, payload_came(id, states_[id], std::move(payload), emit), emit);
  }

  void drop(ReqId id) override { states_.erase(id); }

  bool describe(wire::StageStatus& status) const override {
    status.text_checksum = text_checksum_;
    status.steps = deltas_;
    status.running = static_cast<int32_t>(states_.size());
    status.metrics = {{"detokenizer_states", static_cast<double>(states_.size())},
                      {"detokenizer_tokens_total", static_cast<double>(tokens_)},
                      {"detokenizer_text_stops_total", static_cast<double>(text_stops_)}};
    return true;
  }

 private:
  struct DetokenizeState {
    std::optional<TokenText> text;
    std::optional<ParsedText> parsed;  // where the client gets events instead of text
    std::string all;                   // the text so far
    int64_t received = 0;              // ids, those behind an end by text included
    wire::TextDelta held;              // tokens without text so far, their weight version, the usage after them
    bool ended = false;                // its last delta was sent
    bool streamed = false;             // ids come by a stream
    bool done = false;                 // which has ended
    std::optional<Value> payload;
  };

  static void report(ReqId id, const Status& status, Emit& emit) {
    if (!status.ok()) emit.fail(id, status);
  }

  Status handle(ReqId id, DetokenizeState& state, wire::TokenDelta& delta, Emit& emit) {
    ++deltas_;
    state.streamed = true;
    state.received += static_cast<int64_t>(delta.tokens.size());
    if (!state.text) RETURN_IF_ERROR(begin(state, delta.start.value_or(wire::DetokenizeStart())));
    if (state.ended) return ok_status();
    wire::TextDelta out{
        .id = id, .accepted = delta.start.has_value(), .usage = delta.usage, .weight_version = delta.weight_version};
    RETURN_IF_ERROR(translate(state, delta, out));
    state.ended = out.finish.has_value();
    join_held(id, state, out, emit);
    const bool due = out.accepted || out.finish || !out.text.empty() || !out.events.empty() || !out.logprobs.empty() ||
                     !out.prompt_logprobs.empty() || out.tokens.size() >= kMaxHeldTokens;
    if (due) {
      text(id, std::move(out), emit);
    } else {
      state.held = std::move(out);
    }
    return ok_status();
  }

  Status begin(DetokenizeState& state, const wire::DetokenizeStart& start) {
    ASSIGN_OR_RETURN(state.text, TokenText::create(tokenizer_, start));
    if (start.parsing && to_client_) state.parsed.emplace(*start.parsing, *tokenizer_);
    return ok_status();
  }

  // The text of the delta's tokens. Where it is parsed, id by id, so that what is counted does not depend on the
  // deltas.
  static TokenText::Chunk text_of(DetokenizeState& state, const wire::TokenDelta& delta, OutputEvents& events) {
    const bool last = delta.finish.has_value();
    if (!state.parsed) return state.text->push(delta.tokens, last);
    TokenText::Chunk all;
    const std::span<const int32_t> ids = delta.tokens;
    while (!all.finish && all.fed < ids.size()) {
      TokenText::Chunk chunk = state.text->push(ids.subspan(all.fed, 1), false);
      state.parsed->push(chunk, chunk.finish.has_value(), events);
      all.text += chunk.text;
      all.fed += chunk.fed;
      all.finish = std::move(chunk.finish);
    }
    if (!last || all.finish) return all;
    TokenText::Chunk rest = state.text->push({}, true);
    state.parsed->push(rest, true, events);
    all.text += rest.text;
    all.finish = std::move(rest.finish);
    return all;
  }

  // Adds the text of the delta's tokens, and the end where there is one.
  Status translate(DetokenizeState& state, wire::TokenDelta& delta, wire::TextDelta& out) {
    TokenText::Chunk chunk = text_of(state, delta, out.events);
    if (chunk.finish && chunk.finish->reason == wire::FinishReason::kError) {
      return Status(chunk.finish->code, chunk.finish->message);
    }
    tokens_ += chunk.fed;
    state.all += chunk.text;
    if (state.parsed) {
      out.usage.reasoning_tokens = state.parsed->reasoning_tokens();
    } else {
      out.text = std::move(chunk.text);
    }
    out.tokens = std::move(delta.tokens);
    out.tokens.resize(chunk.fed);
    out.logprobs = std::move(delta.logprobs);
    out.prompt_logprobs = std::move(delta.prompt_logprobs);
    out.embedding = std::move(delta.embedding);
    if (!chunk.finish) {
      out.finish = std::move(delta.finish);
      return ok_status();
    }
    text_stops_ += chunk.finish->matched_text.has_value();
    out.finish = std::move(chunk.finish);
    out.usage.completion_tokens = state.text->ids_fed();
    out.logprobs.resize(std::min(out.logprobs.size(), chunk.fed));  // an end or stop token behind it is not reached
    return ok_status();
  }

  // What was held goes before `out`, in it where the weights are the same.
  void join_held(ReqId id, DetokenizeState& state, wire::TextDelta& out, Emit& emit) {
    if (state.held.tokens.empty()) return;
    wire::TextDelta held = std::exchange(state.held, {});
    if (out.weight_version != held.weight_version && out.weight_version != 0) {
      return text(id, std::move(held), emit);
    }
    out.weight_version = held.weight_version;
    held.tokens.insert(held.tokens.end(), out.tokens.begin(), out.tokens.end());
    out.tokens = std::move(held.tokens);
  }

  // Other stages take text as values.
  void text(ReqId id, wire::TextDelta delta, Emit& emit) {
    if (!streams_) return;
    if (to_client_) return emit.text(id, std::move(delta));
    if (delta.text.empty()) return;
    Value out;
    out.set("text", std::move(delta.text));
    emit.chunk(id, std::move(out));
  }

  Status payload_came(ReqId id, DetokenizeState& state, Value payload, Emit& emit) {
    state.payload = std::move(payload);
    if (state.payload->is<ValueMap>()) {
      RETURN_IF_ERROR(ids_of(*state.payload).status());
      if (!state.streamed) return translate_all(id, state, emit);
    } else if (!state.streamed) {
      return invalid_argument("the payload is a {}, and no tokens came before it; wanted a map with ids",
                              kind_name(*state.payload));
    }
    return conclude(id, state, emit);
  }

  Status translate_all(ReqId id, DetokenizeState& state, Emit& emit) {
    ASSIGN_OR_RETURN(wire::DetokenizeStart start, read_detokenize_options(*state.payload));
    wire::TokenDelta delta{.id = id, .start = std::move(start)};
    ASSIGN_OR_RETURN(delta.tokens, ids_of(*state.payload));
    delta.finish.emplace();
    delta.usage.completion_tokens = static_cast<int32_t>(delta.tokens.size());
    RETURN_IF_ERROR(handle(id, state, delta, emit));
    state.done = true;
    return conclude(id, state, emit);
  }

  Status conclude(ReqId id, DetokenizeState& state, Emit& emit) {
    if (!state.done || !state.payload) return ok_status();
    if (!state.payload->is<ValueMap>()) {
      emit.result(id, Value());  // the deltas carried all
      return ok_status();
    }
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ids_of(*state.payload));
    if (std::cmp_not_equal(state.received, ids.size())) {
      return internal_error("{} ids were streamed; the payload behind them has {}", state.received, ids.size());
    }
    Value out = without(*state.payload, {kDetokenizeKey});
    out.set("text", std::move(state.all));
    emit.result(id, std::move(out));
    return ok_status();
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const uint64_t text_checksum_;
  const bool to_client_;
  const bool streams_;
  std::unordered_map<ReqId, DetokenizeState> states_;
  uint64_t deltas_ = 0, tokens_ = 0, text_stops_ = 0;
};

}  // namespace

std::unique_ptr<Worker> make_detokenize_worker(std::shared_ptr<const Tokenizer> tokenizer,
                                               const Library::WorkerSlot& slot, uint64_t text_checksum) {
  return std::make_unique<DetokenizeWorker>(std::move(tokenizer), slot, text_checksum);
}

}  // namespace millrace
