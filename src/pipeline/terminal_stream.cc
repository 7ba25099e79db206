#include "pipeline/terminal_stream.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <variant>

namespace millrace {
namespace {

// The same value in local memory. As deep as restore() allows at most.
Value copied(const Value& value) {
  if (const auto* list = value.get<ValueList>()) {
    ValueList out;
    for (const Value& element : *list) out.push_back(copied(element));
    return out;
  }
  if (const auto* map = value.get<ValueMap>()) {
    ValueMap out;
    for (const auto& [key, element] : *map) out.emplace_back(key, copied(element));
    return out;
  }
  const auto* tensor = value.get<SharedTensor>();
  if (tensor == nullptr || tensor->bytes.empty() || tensor->bytes.device() != Device::kHost) return value;
  Buffer buffer(tensor->bytes.size_bytes());
  std::memcpy(buffer.data(), tensor->bytes.data(), buffer.size_bytes());
  return SharedTensor{tensor->dtype, tensor->shape, SharedBytes(std::move(buffer))};
}

std::size_t bytes_of(const wire::Payload& payload) {
  return std::accumulate(payload.part_bytes.begin(), payload.part_bytes.end(), payload.tree.bytes.size());
}

}  // namespace

Result<bool> TerminalStream::accept(uint64_t seq, bool is_result) {
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

QueuedChunk& TerminalStream::push(wire::Chunk& chunk) {
  QueuedChunk& queued = queue_.emplace_back();
  queued.seq = chunk.seq;
  if (auto* text = std::get_if<wire::TextDelta>(&chunk.body)) {
    queued.modality = "text";
    queued.bytes = text->text.size() + sizeof(int32_t) * text->tokens.size();
    queued.text = std::move(*text);
  } else {
    auto& value = std::get<wire::StreamValue>(chunk.body);
    queued.modality = std::move(value.modality);
    queued.bytes = bytes_of(value.payload);
  }
  return queued;
}

void TerminalStream::set_value(uint64_t seq, Value value) {
  const auto found = std::find_if(queue_.begin(), queue_.end(), [seq](auto& chunk) { return chunk.seq == seq; });
  if (found == queue_.end()) return;
  found->value = std::move(value);
  found->borrowed = true;
}

void TerminalStream::copy_borrowed() {
  for (QueuedChunk& chunk : queue_) {
    if (!chunk.borrowed || !chunk.value) continue;
    chunk.value = copied(*chunk.value);
    chunk.borrowed = false;
  }
}

bool TerminalStream::is_settled() const {
  return result_ && std::all_of(queue_.begin(), queue_.end(), [](auto& chunk) { return chunk.is_complete(); });
}

}  // namespace millrace
