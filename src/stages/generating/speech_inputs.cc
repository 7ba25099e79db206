#include "stages/generating/speech_inputs.h"

#include <utility>

namespace millrace {
namespace {

// What the talker's stage must know of each: where its rows are, and the grid of a picture.
std::vector<wire::PromptMedia> without_files(const std::vector<wire::PromptMedia>& media) {
  std::vector<wire::PromptMedia> out;
  out.reserve(media.size());
  for (const wire::PromptMedia& one : media) {
    out.push_back({.kind = one.kind,
                   .begin = one.begin,
                   .rows = one.rows,
                   .grid_t = one.grid_t,
                   .grid_h = one.grid_h,
                   .grid_w = one.grid_w,
                   .digest = one.digest,
                   .field = one.field});
  }
  return out;
}

}  // namespace

SpeechInputs::SpeechInputs(SpeechTarget target)
    : target_(std::move(target)), captures_(target_.layer, target_.hidden_size) {}

Status SpeechInputs::begin(const wire::TokenizedRequest& request) {
  if (target_.stage.empty()) return error(StatusCode::kUnsupported, "nothing in this pipeline speaks the answer");
  if (!request.media.empty() && (target_.layer == 0 || request.speech->verbatim)) {
    return error(StatusCode::kUnsupported, "{}: this answer is spoken from text alone; wanted no pictures and audio",
                 request.media.front().field);
  }
  spoken_[request.id].start = wire::SpeechStart{*request.speech, request.prompt, without_files(request.media)};
  return ok_status();
}

std::shared_ptr<RowCapture> SpeechInputs::capture(const wire::TokenizedRequest& request, const PromptInput* input,
                                                  uint64_t weight_version) {
  const auto found = spoken_.find(request.id);
  if (found == spoken_.end() || input == nullptr) return nullptr;
  found->second.wanted = captures_.begin(request.prompt, *input, weight_version);
  return found->second.wanted->capture;
}

Boxed<wire::SpeechStart> SpeechInputs::take_start(ReqId id) {
  const auto found = spoken_.find(id);
  return found == spoken_.end() ? Boxed<wire::SpeechStart>() : std::exchange(found->second.start, {});
}

// A token, or an end that is no abort, comes when the whole prompt was computed.
void SpeechInputs::on_delta(const wire::TokenDelta& delta, Emit& emit) {
  if (spoken_.empty()) return;
  const auto found = spoken_.find(delta.id);
  if (found == spoken_.end() || !found->second.wanted) return;
  const bool ended = delta.finish && delta.finish->reason != wire::FinishReason::kAborted;
  if (delta.tokens.empty() && !ended) return;
  Value rows;
  rows.set(kMediaRowsKey, captures_.finish(*std::exchange(found->second.wanted, std::nullopt), delta.weight_version));
  emit.chunk_to(delta.id, target_.stage, std::move(rows), "");
}

void SpeechInputs::on_weights(uint64_t version) {
  if (std::exchange(weight_version_, version) != version) captures_.flush();
}

void SpeechInputs::describe(std::vector<wire::Metric>& metrics) const {
  if (target_.layer > 0) captures_.describe(metrics);
}

}  // namespace millrace
