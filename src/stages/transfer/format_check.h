// Whether pages of one server are pages of another. Thread safety: a free function.
#pragma once

#include "base/status.h"
#include "wire/transfer_messages.h"

namespace millrace::transfer {

// kConflict names the first field that differs, with both values.
inline Status same_format(const wire::KvFormat& wanted, const wire::KvFormat& ours) {
  const auto differs = [](const char* name, const auto& a, const auto& b) {
    return error(StatusCode::kConflict, "{} is {} there and {} here; wanted the same", name, a, b);
  };
  if (wanted.model_hash != ours.model_hash) return differs("the model", wanted.model_hash, ours.model_hash);
  if (wanted.weights_checksum != ours.weights_checksum) {
    return differs("the weights' checksum", wanted.weights_checksum, ours.weights_checksum);
  }
  if (wanted.page_size != ours.page_size) return differs("the page size", wanted.page_size, ours.page_size);
  if (wanted.kv_dtype != ours.kv_dtype) return differs("the KV dtype", wanted.kv_dtype, ours.kv_dtype);
  if (wanted.isa != ours.isa) return differs("the instruction set", wanted.isa, ours.isa);
  if (wanted.page_bytes != ours.page_bytes) return differs("the size of a page", wanted.page_bytes, ours.page_bytes);
  return ok_status();
}

}  // namespace millrace::transfer
