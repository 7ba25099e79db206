// RequestEvent: what a pipeline reports of one request, in order: texts and values of its answer, then exactly one
// end. A request that is refused gets only its end.
//
// Thread safety: values.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>

#include "base/ids.h"
#include "base/status.h"
#include "payload/value.h"
#include "wire/generation.h"

namespace millrace {

inline constexpr const char* kTextModality = "text";

enum class RequestState : uint8_t { kPending = 0, kRunning = 1, kCompleted = 2, kFailed = 3, kAborted = 4 };

struct RequestEvent {
  struct ValueChunk {
    std::string modality;
    Value value;
  };
  struct End {
    RequestState state = RequestState::kFailed;
    Status status;  // why there is no result
    Value result;   // of the one terminal, or a map of theirs by name
  };

  using Body = std::variant<wire::TextDelta, ValueChunk, End>;

  ReqId id;
  std::string_view stage;  // of a text or a value: the terminal's name, the spec's
  uint64_t chunk_id = 0;   // of a text or a value: from 0 without a gap, for each terminal
  Body body;

  // nullptr: it is something else.
  const wire::TextDelta* text() const { return std::get_if<wire::TextDelta>(&body); }
  const ValueChunk* value_chunk() const { return std::get_if<ValueChunk>(&body); }
  const End* end() const { return std::get_if<End>(&body); }
  bool is_chunk() const { return text() || value_chunk(); }
};

// kFull: the client takes no more now, and the event was not taken; the sink gets it again later, and meanwhile the
// stages that make the answer wait. An end that is an error counts as taken whatever the answer.
enum class SinkAnswer : uint8_t { kTaken, kFull };
using RequestSink = std::function<SinkAnswer(RequestEvent& event)>;

}  // namespace millrace
