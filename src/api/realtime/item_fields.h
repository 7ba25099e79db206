// `item` of conversation.item.create.
//
// Thread safety: free functions.
#pragma once

#include "api/realtime/conversation.h"
#include "api/realtime/dialect.h"
#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

// kInvalidArgument, kUnsupported, kTooLarge, with the field's name first.
Result<RealtimeItem> read_item(const Json& item, const ModelFacts& model);

// A turn of the user: one audio. kUnsupported: the model takes none; kTooLarge: it is longer than audio may be.
Result<RealtimeItem> spoken_item(std::string wav, const ModelFacts& model, const std::string& where);

}  // namespace millrace::api
