// The `options` of Ollama's requests as the fields of a chat.
//
// Served: temperature, top_k, top_p, min_p, seed, num_predict, stop, repeat_penalty, presence_penalty,
// frequency_penalty. Without effect: how a model is loaded and computed (num_ctx, num_gpu, ...). Others are refused by
// name, and unknown ones too: they may change the answer.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

// Adds them to `chat`. `body`: of the request, `ordered` the same with its keys in the client's sequence.
// kInvalidArgument or kUnsupported with the name first, "options.tfs_z ...".
Status translate_ollama_options(const Json& body, const nlohmann::ordered_json& ordered, nlohmann::ordered_json& chat);

// An error of a chat's field that came from an option, by the option's name.
Status with_option_name(const Status& status, const Json& body);

}  // namespace millrace::api
