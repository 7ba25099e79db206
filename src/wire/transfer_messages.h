// The messages of a transfer of KV pages, from a server that computes a prompt (P) to one that generates (D):
//
//   KvWant    D -> P   begins: the tokens, and what D's pages are like
//   KvPart    P -> D   some pages, in the order of the prompt, as they are computed: complete ones, or some layers of
//                      those that are computed now
//   KvTaken   D -> P   so many parts are in D's cache; also without a new one, every kKvRenewMs: D still waits
//   KvEnd     both     the transfer is over: complete (from D), or why it failed (from either)
//
// All name the transfer by its id, which belongs to the two servers and is no request's. A transfer that fails costs
// time alone: D computes what has not arrived.
// docs/wire-protocol.md has them byte by byte. Field numbers are the wire format: append only.
// Thread safety: values; a message belongs to its holder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "wire/limits.h"
#include "wire/pipeline_messages.h"

namespace millrace::wire {

// What must be equal at both ends, or a page's bytes would be nonsense, or other bits, at the other.
struct KvFormat {
  uint64_t model_hash = 0;  // of the model's configuration and how its weights are held
  uint64_t weights_checksum = 0;
  int32_t page_size = 0;   // tokens
  int64_t page_bytes = 0;  // all layers, K and V
  std::string kv_dtype;    // "f32"
  std::string isa;         // "avx512": another one sums in another order

  template <typename V>
  void visit(V&& v) {
    v(1, model_hash), v(2, weights_checksum), v(3, page_size), v(4, page_bytes), v(5, kv_dtype, kMaxDTypeBytes);
    v(6, isa, kMaxNameBytes);
  }
  friend bool operator==(const KvFormat&, const KvFormat&) = default;
};

struct KvWant {
  TransferId id;
  std::string reply_to;  // the endpoint of D's inbox
  KvFormat format;
  std::string extra_key;        // of D's request: pages of another are never given
  std::vector<int32_t> tokens;  // of the complete pages [0, last]
  int32_t from_page = 0;        // D has those below
  Peer reader;                  // D, as relays reach it
  std::string traceparent;      // of D's request, as in Submit

  template <typename V>
  void visit(V&& v) {
    v(1, id.text, kMaxTransferIdBytes), v(2, reply_to, kMaxEndpointBytes), v(3, format), v(4, extra_key);
    v(5, tokens), v(6, from_page), v(7, reader), v(8, traceparent, kMaxTraceparentBytes);
  }
};

// Its bytes come through the relay that it names, or in the message itself where none reaches D.
struct KvPart {
  TransferId id;
  uint32_t number = 0;  // from 0, without gaps
  int32_t first_page = 0;
  int32_t pages = 0;
  bool last = false;      // no part follows
  uint64_t checksum = 0;  // kv_checksum()
  Blob bytes;             // of these layers of each page; empty: a relay has them
  std::string relay;      // empty: the message has the bytes
  Blob descriptor;        // of the relay's
  // Layers [first_layer, first_layer + layers) of these pages; the others come in other parts.
  int32_t first_layer = 0;
  int32_t layers = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, id.text, kMaxTransferIdBytes), v(2, number), v(3, first_page), v(4, pages), v(5, last), v(6, checksum);
    v(7, bytes, kMaxKvPartBytes), v(8, relay, kMaxRelayNameBytes), v(9, descriptor, kMaxDescriptorBytes);
    v(10, first_layer), v(11, layers);
  }
};

struct KvTaken {
  TransferId id;
  uint32_t parts = 0;    // parts [0, parts) are in D's cache
  bool again = false;    // send those from `parts` on once more: one was lost or damaged
  std::string reply_to;  // as in KvWant: of an unknown transfer P sends KvEnd there

  template <typename V>
  void visit(V&& v) {
    v(1, id.text, kMaxTransferIdBytes), v(2, parts), v(3, again);
    v(4, reply_to, kMaxEndpointBytes);
  }
};

struct KvEnd {
  TransferId id;
  std::optional<Failure> failure;  // none: complete

  template <typename V>
  void visit(V&& v) {
    v(1, id.text, kMaxTransferIdBytes), v(2, failure);
  }
};

// xxh3 (64 bits) over fields, each with its length (base/xxh3.h, FieldsChecksum): the id, the numbers, the bytes, the
// relay, the descriptor.
uint64_t kv_checksum(const KvPart& part);

Status validate(const KvWant& message);
Status validate(const KvPart& message);
Status validate(const KvTaken& message);
Status validate(const KvEnd& message);

}  // namespace millrace::wire
