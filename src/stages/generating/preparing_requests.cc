#include "stages/generating/preparing_requests.h"

#include <utility>

#include "stages/generating/request_checks.h"

namespace millrace {

PreparingRequests::PreparingRequests(std::shared_ptr<const Tokenizer> tokenizer, int32_t vocab_size,
                                     std::vector<int32_t> end_ids, std::unique_ptr<MediaModel> media)
    : has_end_tokens_(!end_ids.empty()) {
  if (tokenizer) grammars_.emplace(std::move(tokenizer), vocab_size, std::move(end_ids));
  if (media) media_.emplace(std::move(media));
}

Result<std::optional<PreparingState>> PreparingRequests::begin(PreparingState next) {
  RETURN_IF_ERROR(begin_grammar(next));
  if (Status status = begin_media(next); !status.ok()) {
    drop_parts(next.request.id);
    return status;
  }
  if (next.ready()) return std::optional<PreparingState>(std::move(next));
  const ReqId id = next.request.id;
  waiting_.insert_or_assign(id, std::move(next));
  return std::optional<PreparingState>();
}

Status PreparingRequests::begin_grammar(PreparingState& next) {
  const wire::SamplingParams& sampling = next.request.sampling;
  if (!sampling.grammar) return ok_status();
  RETURN_IF_ERROR(check_grammar_use(sampling, grammars_.has_value(), has_end_tokens_));
  // nullopt: it is compiled on another thread, and take_finished() will have it. Compiled ones are cached by key.
  auto compiled = grammars_->compile(next.request.id, grammar_key(sampling));
  next.compiles = !compiled;
  if (next.compiles) return ok_status();
  if (!compiled->ok()) return compiled->status().with_prefix(sampling.grammar->field);
  next.parts.grammar = std::move(**compiled);
  return ok_status();
}

Status PreparingRequests::begin_media(PreparingState& next) {
  wire::TokenizedRequest& request = next.request;
  if (request.media.empty()) return ok_status();
  if (!media_) return error(StatusCode::kUnsupported, "{}: this model takes text only", request.media.front().field);
  const auto rows = static_cast<int32_t>(request.prompt.size());
  RETURN_IF_ERROR(check_prompt_media(request.media, rows));
  for (wire::PromptMedia& media : request.media) media.traceparent = request.traceparent;
  auto encoded = media_->encode(request.id, request.media, rows);
  next.encodes = !encoded;
  if (next.encodes) return ok_status();
  if (!encoded->ok()) return encoded->status();
  next.parts.input = std::move(**encoded);
  return ok_status();
}

std::vector<PreparingRequests::Prepared> PreparingRequests::take_prepared() {
  std::vector<Prepared> out;
  if (grammars_ && !grammars_->idle()) {
    for (auto& [id, compiled] : grammars_->take_finished()) {
      const auto waiting = waiting_.find(id);
      if (waiting == waiting_.end()) continue;  // it was dropped
      PreparingState& next = waiting->second;
      next.compiles = false;
      if (compiled.ok()) next.parts.grammar = std::move(*compiled);
      on_part(waiting, compiled.status().with_prefix(next.request.sampling.grammar->field), out);
    }
  }
  if (!media_) return out;
  for (auto& [id, encoded] : media_->take_finished()) {
    const auto waiting = waiting_.find(id);
    if (waiting == waiting_.end()) continue;
    waiting->second.encodes = false;
    if (encoded.ok()) waiting->second.parts.input = std::move(*encoded);
    on_part(waiting, encoded.status(), out);
  }
  return out;
}

// One part of it is there, or cannot be.
void PreparingRequests::on_part(Waiting::iterator waiting, Status status, std::vector<Prepared>& out) {
  if (status.ok() && !waiting->second.ready()) return;
  // The other part of a refused one may still be under way.
  if (!status.ok()) drop_parts(waiting->first);
  out.push_back({std::move(waiting->second), std::move(status)});
  waiting_.erase(waiting);
}

void PreparingRequests::drop(ReqId id) {
  if (waiting_.erase(id) != 0) drop_parts(id);
}

void PreparingRequests::drop_parts(ReqId id) {
  if (grammars_) grammars_->drop(id);
  if (media_) media_->drop(id);
}

std::vector<PreparingState> PreparingRequests::take_all() {
  std::vector<PreparingState> out;
  for (auto& [id, next] : std::exchange(waiting_, {})) {
    drop_parts(id);
    out.push_back(std::move(next));
  }
  return out;
}

void PreparingRequests::flush() {
  if (media_) media_->flush();
}

void PreparingRequests::describe(std::vector<PreparingRequest>& out, int64_t now_ms) const {
  for (const auto& [id, next] : waiting_) out.push_back(next.describe(now_ms, next.encodes ? "media" : "grammar"));
}

void PreparingRequests::describe(std::vector<wire::Metric>& metrics) const {
  if (grammars_) grammars_->describe(metrics);
  if (media_) media_->describe(metrics);
}

}  // namespace millrace
