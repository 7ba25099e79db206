// The embedding of a prompt: the hidden row of its last token behind the final norm, or the mean of all such rows,
// which are captured (runner/row_capture.h) and computed however much of the prompt is cached.
//
// Thread safety: pure functions.
#pragma once

#include <memory>

#include "base/status.h"
#include "runner/runner.h"
#include "wire/generation.h"

namespace millrace {

// request.embed is set. kUnsupported where this engine gives no rows (a layer split); kInvalidArgument for a request
// that wants a text too.
Status check_embed_use(const wire::TokenizedRequest& request, const RunnerFacts& model);
std::shared_ptr<RowCapture> capture_embedding(const wire::TokenizedRequest& request, const RunnerFacts& model);
// Once the prompt was computed.
wire::Embedding embedding_of(const RowCapture& captured);

}  // namespace millrace
