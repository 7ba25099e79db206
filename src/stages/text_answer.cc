#include "stages/text_answer.h"

#include <algorithm>

#include "stages/pipeline_engine.h"
#include "stages/speech/speech_workers.h"

namespace millrace {
namespace {

wire::TextDelta ended(ReqId id, const Status& status) {
  wire::TextDelta delta{.id = id};
  const bool aborted = status.code() == StatusCode::kCancelled;
  delta.finish =
      aborted ? wire::Finish{.reason = wire::FinishReason::kAborted}
              : wire::Finish{.reason = wire::FinishReason::kError, .code = status.code(), .message = status.message()};
  return delta;
}

}  // namespace

void TextAnswer::begin(PipelineEngine& pipeline, int32_t vocabulary, bool spoken) {
  pipeline_ = &pipeline;
  vocabulary_ = vocabulary;
  spoken_ = spoken;
}

SinkAnswer TextAnswer::deliver(const RequestEvent& event) {
  if (ended_) return SinkAnswer::kTaken;
  if (const wire::TextDelta* delta = event.text()) {
    if (Status status = check(*delta); !status.ok()) {
      damaged(event.id, status);
    } else if (delta->finish && spoken_ && delta->finish->reason != wire::FinishReason::kError) {
      hold_finish(*delta);
    } else {
      ended_ = delta->finish.has_value();
      on_text(*delta);
    }
  } else if (spoken_ && event.value_chunk()) {
    return take_audio(event.id, *event.value_chunk());
  } else if (event.end()) {
    end(event.id, event.end()->status);
  }
  return SinkAnswer::kTaken;
}

void TextAnswer::end(ReqId id, const Status& status) {
  ended_ = true;
  if (status.ok() && last_) return on_text(*last_);
  const Status none = internal_error("the pipeline ended the request without a status");
  on_text(ended(id, status.ok() ? none : status));
}

void TextAnswer::damaged(ReqId id, const Status& status) {
  end(id, status);
  pipeline_->abort(id);
}

// An id that the model does not have is damage on its way: an answer without it would look whole.
Status TextAnswer::check(const wire::TextDelta& delta) const {
  const auto strange = std::find_if(delta.tokens.begin(), delta.tokens.end(), [this](int32_t token) {
    return token < 0 || (vocabulary_ > 0 && token >= vocabulary_);
  });
  if (strange == delta.tokens.end()) return ok_status();
  return internal_error("the engine sent token id {}; wanted 0 to {}", *strange, vocabulary_ - 1);
}

// The text is complete, the sound is not.
void TextAnswer::hold_finish(const wire::TextDelta& delta) {
  last_ = wire::TextDelta{
      .id = delta.id, .finish = delta.finish, .usage = delta.usage, .weight_version = delta.weight_version};
  wire::TextDelta text = delta;
  text.finish.reset();
  on_text(text);
}

SinkAnswer TextAnswer::take_audio(ReqId id, const RequestEvent::ValueChunk& chunk) {
  const Value* samples = chunk.value.is<ValueMap>() ? chunk.value.find(kSamplesKey) : nullptr;
  const SharedTensor* tensor = samples == nullptr ? nullptr : samples->get<SharedTensor>();
  if (tensor == nullptr || tensor->dtype != DType::kF32 || tensor->shape.rank() != 1) {
    damaged(id, internal_error("the pipeline sent no samples as audio; wanted F32 [n]"));
    return SinkAnswer::kTaken;
  }
  const auto* first = static_cast<const float*>(tensor->view().data);
  return on_audio({first, static_cast<std::size_t>(tensor->shape.elements())});
}

}  // namespace millrace
