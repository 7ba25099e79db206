#include "pipeline/terminal_stream.h"

#include <algorithm>
#include <numeric>
#include <variant>

#include "stages/loop/detach.h"

namespace millrace {
namespace {

std::size_t bytes_of(const wire::Payload& payload) {
  return std::accumulate(payload.part_bytes.begin(), payload.part_bytes.end(), payload.tree.bytes.size());
}

}  // namespace

std::size_t bytes_of(const wire::TextDelta& text) {
  std::size_t bytes = text.text.size() + sizeof(int32_t) * text.tokens.size();
  for (const wire::OutputEvent& event : text.events) bytes += sizeof(event) + event.text.size();
  return bytes;
}

Result<bool> TerminalStream::accept(uint64_t seq, bool is_result) {
  // The messages of one sender come in their sequence, so a gap is a loss.
  if (seq > next_seq_) {
    return error(StatusCode::kUnavailable, "chunk {} of the answer came; wanted chunk {}", seq, next_seq_);
  }
  if (seq < next_seq_) {
    if (!is_result || result_seq_) return false;
    return internal_error("the result is chunk {} of the answer; {} chunks came before it", seq, next_seq_);
  }
  if (result_seq_) return internal_error("chunk {} of the answer came after the result", seq);
  ++next_seq_;
  if (is_result) result_seq_ = seq;
  return true;
}

Status TerminalStream::check_sent(uint64_t count) const {
  if (count <= next_seq_) return ok_status();
  return error(StatusCode::kUnavailable, "{} chunks of the answer were sent; wanted chunk {}: one is lost", count,
               next_seq_);
}

QueuedChunk& TerminalStream::push(wire::Chunk& chunk) {
  QueuedChunk& queued = queue_.emplace_back();
  queued.seq = chunk.seq;
  if (auto* text = std::get_if<wire::TextDelta>(&chunk.body)) {
    queued.bytes = bytes_of(*text);
    queued.body = std::move(*text);
    queued.is_complete = true;
  } else {
    auto& value = std::get<wire::StreamValue>(chunk.body);
    queued.bytes = bytes_of(value.payload);
    queued.body = RequestEvent::ValueChunk{.modality = std::move(value.modality)};
  }
  return queued;
}

void TerminalStream::set_value(uint64_t seq, Value value, bool borrowed) {
  const auto found = std::find_if(queue_.begin(), queue_.end(), [seq](auto& chunk) { return chunk.seq == seq; });
  // The sink took the chunk, or the request's stream was dropped, while its value was on the way.
  if (found == queue_.end()) return;
  std::get<RequestEvent::ValueChunk>(found->body).value = std::move(value);
  found->is_complete = true;
  found->borrowed = borrowed;
}

void TerminalStream::copy_borrowed() {
  for (QueuedChunk& chunk : queue_) {
    if (!chunk.borrowed) continue;
    loop::detach(std::get<RequestEvent::ValueChunk>(chunk.body).value);
    chunk.borrowed = false;
  }
}

bool TerminalStream::is_settled() const {
  // The result alone is not enough: values of chunks before it may still be fetched from the stage's relay.
  return result_ && std::all_of(queue_.begin(), queue_.end(), [](auto& chunk) { return chunk.is_complete; });
}

}  // namespace millrace
