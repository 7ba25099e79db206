// The messages between a stage that generates (G) and one that encodes pictures and audio for it (E):
//
//   EncodeMedia   G -> E   one picture or audio, with its file
//   FeaturesPart  E -> G   some of its features, in their sequence, without gaps
//   EncodeEnd     both     G wants it no more; E could not encode it
//
// All name the job by a number that G gives it. What is lost costs time alone: G asks again.
// docs/wire-protocol.md has them byte by byte. Field numbers are the wire format: append only.
// Thread safety: values; a message belongs to its holder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "wire/limits.h"
#include "wire/pipeline_messages.h"
#include "wire/prompt_media.h"

namespace millrace::wire {

// What must be equal at both ends, or features would be nonsense, or other bits, at the other.
struct EncoderFacts {
  uint64_t model_hash = 0;  // of its files' names, types, shapes and samples
  std::string isa;          // "avx512": another one sums in another order

  template <typename V>
  void visit(V&& v) {
    v(1, model_hash), v(2, isa, kMaxNameBytes);
  }
  friend bool operator==(const EncoderFacts&, const EncoderFacts&) = default;
};

struct EncodeMedia {
  uint64_t job = 0;
  std::string reply_to;  // the endpoint of G's inbox
  EncoderFacts facts;
  PromptMedia media;
  std::string traceparent;  // of G's request, as in Submit

  template <typename V>
  void visit(V&& v) {
    v(1, job), v(2, reply_to, kMaxEndpointBytes), v(3, facts), v(4, media);
    v(5, traceparent, kMaxTraceparentBytes);
  }
};

// f32 values [first, first + bytes / 4) of all, which are [sets, rows, hidden_size].
struct FeaturesPart {
  uint64_t job = 0;
  int32_t rows = 0;
  int32_t sets = 0;
  int64_t hidden_size = 0;
  int64_t first = 0;
  uint64_t checksum = 0;  // features_checksum()
  Blob bytes;

  template <typename V>
  void visit(V&& v) {
    v(1, job), v(2, rows), v(3, sets), v(4, hidden_size), v(5, first), v(6, checksum), v(7, bytes, kMaxFeaturesBytes);
  }
};

struct EncodeEnd {
  uint64_t job = 0;
  std::string reply_to;            // from G: as in EncodeMedia, since job numbers are G's own
  std::optional<Failure> failure;  // none: it is wanted no more

  template <typename V>
  void visit(V&& v) {
    v(1, job), v(2, reply_to, kMaxEndpointBytes), v(3, failure);
  }
};

// xxh3 (64 bits) over fields, each with its length (base/xxh3.h, FieldsChecksum): the numbers, the bytes.
uint64_t features_checksum(const FeaturesPart& part);

Status validate(const EncodeMedia& message);
Status validate(const FeaturesPart& message);
Status validate(const EncodeEnd& message);

}  // namespace millrace::wire
