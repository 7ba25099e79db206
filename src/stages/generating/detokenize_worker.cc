// detokenize: a stream of ids to a stream of text, or the ids of a payload to their text.
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

  void chunk(ReqId id, const std::string&, Value chunk, Emit& emit) override { say(id, hear(id, chunk, emit), emit); }

  void chunks_done(ReqId id, const std::string&, Emit& emit) override {
    say(id, stream_ended(id, lives_[id], emit), emit);
  }

  // The result of a stage that streams comes behind the end of its stream; without any, its ids are all there is.
  void start(ReqId id, Value payload, Emit& emit) override {
    say(id, payload_came(id, lives_[id], std::move(payload), emit), emit);
  }

  void drop(ReqId id) override { lives_.erase(id); }

 private:
  struct Life {
    std::optional<TokenText> text;
    std::string all;        // the text so far
    int64_t heard = 0;      // ids, those behind an end by text included
    bool ended = false;     // by its text
    bool streamed = false;  // ids come by a stream
    bool done = false;      // which has ended
    std::optional<Value> payload;
  };

  static void say(ReqId id, const Status& status, Emit& emit) {
    if (!status.ok()) emit.fail(id, status);
  }

  Status hear(ReqId id, const Value& chunk, Emit& emit) {
    Life& life = lives_[id];
    life.streamed = true;
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ids_of(chunk));
    if (!life.text) RETURN_IF_ERROR(open(life, chunk));
    return feed(id, life, ids, false, emit);
  }

  Status open(Life& life, const Value& options) {
    ASSIGN_OR_RETURN(const wire::DetokenizeStart start, read_detokenize_options(options));
    ASSIGN_OR_RETURN(life.text, TokenText::create(tokenizer_, start));
    return ok_status();
  }

  Status feed(ReqId id, Life& life, const std::vector<int32_t>& ids, bool last, Emit& emit) {
    life.heard += static_cast<int64_t>(ids.size());
    if (life.ended) return ok_status();
    const TokenText::Piece piece = life.text->feed(ids, last);
    life.all += piece.text;
    if (piece.finish && piece.finish->reason == wire::FinishReason::kError) {
      return Status(piece.finish->code, piece.finish->message);
    }
    life.ended = piece.finish.has_value();
    if (piece.text.empty() || !streams_) return ok_status();
    Value out;
    out.set("text", piece.text);
    if (to_client_) {
      emit.chunk_to(id, "", std::move(out), "text");
    } else {
      emit.chunk(id, std::move(out));
    }
    return ok_status();
  }

  Status stream_ended(ReqId id, Life& life, Emit& emit) {
    life.streamed = life.done = true;
    if (life.text) RETURN_IF_ERROR(feed(id, life, {}, true, emit));
    return conclude(id, life, emit);
  }

  Status payload_came(ReqId id, Life& life, Value payload, Emit& emit) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ids_of(payload));
    life.payload = std::move(payload);
    if (life.streamed) return conclude(id, life, emit);
    RETURN_IF_ERROR(open(life, *life.payload));
    RETURN_IF_ERROR(feed(id, life, ids, true, emit));
    life.done = true;
    return conclude(id, life, emit);
  }

  Status conclude(ReqId id, Life& life, Emit& emit) {
    if (!life.done || !life.payload) return ok_status();
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
};

}  // namespace

std::unique_ptr<Worker> make_detokenize_worker(std::shared_ptr<const Tokenizer> tokenizer,
                                               const Library::WorkerSeat& seat) {
  return std::make_unique<DetokenizeWorker>(std::move(tokenizer), seat);
}

}  // namespace millrace
