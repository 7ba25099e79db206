// The messages of a layer split: hidden rows on their way through the ranges of a chain. Each range sends to the next
// one, and the last to the first:
//
//   LayerHello   first -> ... -> last -> first   begins an epoch: each range compares and adds itself
//   LayerStep    first -> ... -> last            rows to go through the next range's layers
//   LayerResult  last -> first                   the rows that answer something
//   LayerAlive   each -> first                   its process runs, whatever its layers do
//
// An epoch is one incarnation of the whole chain: what carries another epoch than the last hello is late, and dropped.
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

// What must be equal in all ranges of a chain, or rows of one would be nonsense, or other bits, in the next.
struct ChainFacts {
  uint64_t model_hash = 0;  // of the model's configuration and how its weights are held
  int32_t layers = 0;       // of the model
  int32_t hidden_size = 0;
  int32_t page_size = 0;  // tokens
  int32_t page_count = 0;
  int32_t host_page_count = 0;
  int32_t max_rows = 0;  // of one step
  std::string kv_dtype;  // "f32"
  std::string isa;       // "avx512": another one sums in another order
  uint64_t weight_version = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, model_hash), v(2, layers), v(3, hidden_size), v(4, page_size), v(5, page_count), v(6, host_page_count);
    v(7, max_rows), v(8, kv_dtype, kMaxDTypeBytes), v(9, isa, kMaxNameBytes), v(10, weight_version);
  }
  friend bool operator==(const ChainFacts&, const ChainFacts&) = default;
};

struct LayerHello {
  uint64_t chain_epoch = 0;
  uint32_t stage_from = 0;         // the range that sends, counted from 0
  uint32_t ranges = 0;             // of the chain
  int32_t layers_end = 0;          // the ranges so far hold layers [0, layers_end)
  ChainFacts facts;                // of the first range
  std::optional<Failure> failure;  // of the first range that does not fit; the others pass it on
  uint64_t weights_checksum = 0;   // of all bytes of the weights that the ranges so far have loaded

  template <typename V>
  void visit(V&& v) {
    v(1, chain_epoch), v(2, stage_from), v(3, ranges), v(4, layers_end), v(5, facts), v(6, failure);
    v(7, weights_checksum);
  }
};

enum class StepKind : uint8_t { kPrefill = 0, kDecode = 1, kMixed = 2 };
enum class RowType : uint8_t { kF32 = 0 };
enum class RowLayout : uint8_t { kRowMajor = 0 };

// The rows of one sequence in a step: they are at positions [token_index, token_index + rows).
struct LayerSequence {
  ReqId request_id;
  int32_t token_index = 0;
  int32_t rows = 0;
  // Its page table, which covers token_index + rows tokens: the first `pages_kept` pages of the one that the request
  // had in an earlier step of this epoch, and `pages` behind them.
  std::vector<int32_t> pages;
  int32_t pages_kept = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, request_id), v(2, token_index), v(3, rows), v(4, pages), v(5, pages_kept);
  }
  friend bool operator==(const LayerSequence&, const LayerSequence&) = default;
};

// Hidden rows, and what their checksum covers of a message.
struct LayerRows {
  int32_t seq = 0;  // rows
  int32_t hidden_size = 0;
  RowType dtype = RowType::kF32;
  RowLayout layout = RowLayout::kRowMajor;
  uint64_t payload_bytes = 0;  // of `bytes`
  uint64_t checksum = 0;       // layer_checksum()
  Blob bytes;

  template <typename V>
  void visit(V&& v) {
    v(1, seq), v(2, hidden_size), v(3, dtype), v(4, layout), v(5, payload_bytes), v(6, checksum);
    v(7, bytes, kMaxLayerRowsBytes);
  }
};

// What rows with pictures before them have beside hidden values: where they stand, and what layers of later ranges add
// to them (models/model.h, Step).
struct LayerMedia {
  Blob positions;                  // f32 [rows of the step, 3]
  std::vector<int32_t> additions;  // layer and row; two for each
  Blob features;                   // f32 [additions, hidden_size]

  template <typename V>
  void visit(V&& v) {
    v(1, positions, kMaxLayerRowsBytes), v(2, additions), v(3, features, kMaxLayerRowsBytes);
  }
};

struct LayerStep {
  uint64_t chain_epoch = 0;
  StepKind step_kind = StepKind::kPrefill;
  uint32_t stage_from = 0;
  uint32_t stage_to = 0;
  uint64_t step = 0;            // number of the batch
  uint32_t part = 0;            // of the batch, from 0
  uint64_t weight_version = 0;  // that computes it
  std::vector<LayerSequence> batch;
  std::vector<int32_t> copies;  // of pages, done first: direction, page, page of the host tier; three for each copy
  std::vector<int32_t> answer_rows;  // that the first range wants back, ascending
  std::vector<int64_t> compute_us;   // of each range so far, the first one first
  std::optional<Failure> failure;    // of a range before: passed on, and nothing computed
  LayerRows rows;
  uint64_t number = 0;  // of the message in its epoch, from 0: one that is repeated or missing shows
  std::optional<LayerMedia> media;

  template <typename V>
  void visit(V&& v) {
    v(1, chain_epoch), v(2, step_kind), v(3, stage_from), v(4, stage_to), v(5, step), v(6, part), v(7, weight_version);
    v(8, batch, kMaxLayerSequences), v(9, copies), v(10, answer_rows), v(11, compute_us, kMaxRanges), v(12, failure);
    v(13, rows), v(14, number), v(15, media);
  }
};

struct LayerResult {
  uint64_t chain_epoch = 0;
  uint32_t stage_from = 0;
  uint64_t step = 0;
  uint32_t part = 0;
  std::vector<int64_t> compute_us;  // of each range
  std::optional<Failure> failure;
  LayerRows rows;  // one for each of answer_rows

  template <typename V>
  void visit(V&& v) {
    v(1, chain_epoch), v(2, stage_from), v(3, step), v(4, part), v(5, compute_us, kMaxRanges), v(6, failure);
    v(7, rows);
  }
};

struct LayerAlive {
  uint32_t stage_from = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, stage_from);
  }
};

// xxh3 (64 bits) over fields, each with its length (base/xxh3.h, FieldsChecksum): the numbers of the message and of
// each sequence, its lists, and the bytes of the rows. docs/wire-protocol.md has them in their order.
uint64_t layer_checksum(const LayerStep& step);
uint64_t layer_checksum(const LayerResult& result);

// What the codec asks of each message: counts that agree with each other. Whether they suit the receiver's range, it
// finds out itself.
Status validate(const LayerHello& message);
Status validate(const LayerStep& message);
Status validate(const LayerResult& message);
Status validate(const LayerAlive& message);

}  // namespace millrace::wire
