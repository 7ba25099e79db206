#include "stages/speech/talker_rows.h"

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "models/model.h"
#include "runner/head_and_sampler.h"
#include "tensor/float_buffer.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Rows;

constexpr int64_t kTileRows = 128;
constexpr uint64_t kCodebookStream = 0x636f6465;  // of a seed's numbers: draws of tokens use stream 0

// transformers fixes these for the code predictor, whatever the talker's sampling is.
constexpr int32_t kCodeTopK = 50;
constexpr double kCodeTopP = 0.8;

TalkerSequence& sequence_of(RowState* state) { return static_cast<TalkerSequence&>(*state); }

Rows rows_of(Buffer& buffer, int64_t count, int64_t width) { return {buffer.as<float>().data(), count, width}; }

// A seed of its own for each codebook, so that a draw depends on (seed, frame, codebook).
uint64_t codebook_seed(uint64_t seed, int group) {
  const PhiloxBlock words = philox(seed, static_cast<uint64_t>(group), kCodebookStream);
  return uint64_t{words[1]} << 32 | words[0];
}

}  // namespace

TalkerRows::TalkerRows(const TalkerConfig& config, TalkerParts parts)
    : config_(config),
      parts_(std::move(parts)),
      scratch_(*parts_.predictor, kMaxLogitRows),
      sampler_(config.predictor.vocab_size),
      rows_(float_buffer(kTileRows, config.text.hidden_size)),
      more_(float_buffer(kTileRows, config.text.hidden_size)),
      thinker_rows_(float_buffer(kTileRows, config.thinker_hidden_size)) {}

void TalkerRows::fill(std::span<const SourceRow> rows, Rows hidden, const Model& model, kernels::Ops& ops) {
  for (std::size_t first = 0; first < rows.size(); first += kTileRows) {
    fill_tile(rows.subspan(first, std::min<std::size_t>(kTileRows, rows.size() - first)), hidden, model, ops);
  }
}

void TalkerRows::fill_tile(std::span<const SourceRow> rows, Rows hidden, const Model& model, kernels::Ops& ops) {
  const auto others = static_cast<std::size_t>(config_.code_groups - 1);
  spoken_.assign(rows.size(), {});
  rest_.assign(rows.size() * others, 0);
  is_frame_.assign(rows.size(), false);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::span<int32_t> rest = std::span(rest_).subspan(i * others, others);
    is_frame_[i] = sequence_of(rows[i].sequence).read_row(rows[i].position, spoken_[i], rest);
    std::fill_n(hidden.row(rows[i].row), hidden.width, 0.0f);
  }
  add_codes(rows, hidden, model, ops);
  add_text(rows, hidden, ops);
  add_media(rows, hidden, ops);
}

// The first code of every row that has one, then the others of those that are frames, which stand first.
void TalkerRows::add_codes(std::span<const SourceRow> rows, Rows hidden, const Model& model, kernels::Ops& ops) {
  const auto others = static_cast<std::size_t>(config_.code_groups - 1);
  std::vector<std::size_t> coded;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (spoken_[i].code != kNoId) coded.push_back(i);
  }
  if (coded.empty()) return;
  const auto behind_frames =
      std::stable_partition(coded.begin(), coded.end(), [&](std::size_t i) { return is_frame_[i]; });
  std::vector<int32_t> first, rest;
  for (const std::size_t i : coded) first.push_back(spoken_[i].code);
  for (auto it = coded.begin(); it != behind_frames; ++it) {
    const auto from = rest_.begin() + static_cast<std::ptrdiff_t>(*it * others);
    rest.insert(rest.end(), from, from + static_cast<std::ptrdiff_t>(others));
  }
  const Rows sums = rows_of(rows_, static_cast<int64_t>(coded.size()), hidden.width);
  model.embed(first, sums, ops);
  const int64_t frames = behind_frames - coded.begin();
  if (frames > 0) parts_.predictor->add_embeddings(rest, scratch_, ops, sums.slice(0, frames));
  for (std::size_t k = 0; k < coded.size(); ++k) {
    std::copy_n(sums.row(static_cast<int64_t>(k)), hidden.width, hidden.row(rows[coded[k]].row));
  }
}

void TalkerRows::add_text(std::span<const SourceRow> rows, Rows hidden, kernels::Ops& ops) {
  std::vector<int32_t> ids;
  std::vector<int64_t> to;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (spoken_[i].text == kNoId) continue;
    ids.push_back(spoken_[i].text);
    to.push_back(rows[i].row);
  }
  if (ids.empty()) return;
  const auto count = static_cast<int64_t>(ids.size());
  const Rows embedded = rows_of(thinker_rows_, count, config_.thinker_hidden_size);
  const Rows projected = rows_of(rows_, count, hidden.width), sums = rows_of(more_, count, hidden.width);
  ops.embedding(parts_.thinker_embedding, ids, embedded);
  parts_.text->project(embedded, ops, projected);
  for (int64_t k = 0; k < count; ++k)
    std::copy_n(hidden.row(to[static_cast<std::size_t>(k)]), hidden.width, sums.row(k));
  ops.add(projected, sums);
  for (int64_t k = 0; k < count; ++k)
    std::copy_n(sums.row(k), hidden.width, hidden.row(to[static_cast<std::size_t>(k)]));
}

void TalkerRows::add_media(std::span<const SourceRow> rows, Rows hidden, kernels::Ops& ops) {
  std::vector<int64_t> to;
  const Rows thinker = rows_of(thinker_rows_, kTileRows, config_.thinker_hidden_size);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (spoken_[i].media == kNoId) continue;
    const float* row = sequence_of(rows[i].sequence).media_row(spoken_[i].media);
    std::copy_n(row, thinker.width, thinker.row(static_cast<int64_t>(to.size())));
    to.push_back(rows[i].row);
  }
  if (to.empty()) return;
  const auto count = static_cast<int64_t>(to.size());
  const Rows projected = rows_of(rows_, count, hidden.width);
  parts_.media->project(thinker.slice(0, count), ops, projected);
  for (int64_t k = 0; k < count; ++k) {
    std::copy_n(projected.row(k), hidden.width, hidden.row(to[static_cast<std::size_t>(k)]));
  }
}

// The end has no frame.
void TalkerRows::taken(std::span<DrawnToken> tokens, const Model& model, kernels::Ops& ops) {
  CHECK(tokens.size() <= kMaxLogitRows);
  std::vector<DrawnToken*> frames;
  for (DrawnToken& token : tokens) {
    if (token.token != config_.codec_eos) frames.push_back(&token);
  }
  if (!frames.empty()) complete(frames, model, ops);
}

void TalkerRows::complete(std::span<DrawnToken* const> tokens, const Model& model, kernels::Ops& ops) {
  const auto count = static_cast<int64_t>(tokens.size()), width = int64_t{config_.text.hidden_size};
  const auto others = static_cast<std::size_t>(config_.code_groups - 1);
  std::vector<int32_t> first, codes(tokens.size() * others);
  const Rows hidden = rows_of(rows_, count, width), embedded = rows_of(more_, count, width);
  for (int64_t r = 0; r < count; ++r) {
    const DrawnToken& token = *tokens[static_cast<std::size_t>(r)];
    first.push_back(token.token);
    std::copy_n(token.hidden, width, embedded.row(r));
  }
  model.final_norm(embedded, hidden, ops);
  model.embed(first, embedded, ops);
  const auto choose_all = [&](int group, ConstRows logits, std::span<int32_t> chosen) {
    for (std::size_t r = 0; r < tokens.size(); ++r) {
      const auto row = std::span(logits.row(static_cast<int64_t>(r)), static_cast<std::size_t>(logits.width));
      const Result<int32_t> code = choose(row, *tokens[r], group);
      chosen[r] = code.ok() ? *code : 0;
      if (!code.ok() && tokens[r]->status.ok()) tokens[r]->status = code.status().with_prefix("the code predictor");
    }
  };
  parts_.predictor->predict(hidden, embedded, scratch_, ops, choose_all, codes);
  std::vector<int32_t> frame(others + 1);
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    frame[0] = tokens[r]->token;
    std::copy_n(codes.begin() + static_cast<std::ptrdiff_t>(r * others), others, frame.begin() + 1);
    sequence_of(tokens[r]->sequence).set_frame(tokens[r]->position, frame);
  }
}

Result<int32_t> TalkerRows::choose(std::span<const float> logits, const DrawnToken& token, int group) {
  const TalkerSequence& sequence = sequence_of(token.sequence);
  const CodeDraws& draws = sequence.draws();
  if (draws.greedy) return greedy_token(logits);
  SamplingSpec spec;
  spec.top_k = std::min<int32_t>(kCodeTopK, static_cast<int32_t>(logits.size()));
  spec.top_p = kCodeTopP;
  spec.seed = codebook_seed(draws.seed, group);
  return sampler_.sample(logits, spec, token.position - sequence.prompt_rows());
}

}  // namespace millrace
