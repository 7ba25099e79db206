// The span of a request at this stage (stages/stage_spans.h): from the message that brought it until its last result is
// in a batch, it fails, or its abort comes. It is finished before the message that ends the request leaves: so it lies
// inside the server's.
//
// Thread safety: the loop's thread.
#pragma once

#include <string>

#include "base/status.h"
#include "stages/loop/context.h"

namespace millrace::loop {

// `traceparent` "": it is not traced. Where the process exports no spans, it goes on to the next stages all the same.
void begin_span(const LoopContext& context, LoopRequest& request, std::string traceparent);
// Its last result is on its way, perhaps one of several.
void note_result(const LoopContext& context, LoopRequest& request);
// Once for each request; nothing happens the next time. `why` OK: it was done.
void end_span(const LoopContext& context, LoopRequest& request, const Status& why);
// One that came, and was refused.
void add_refused_span(const LoopContext& context, const std::string& traceparent, const Status& why);

}  // namespace millrace::loop
