// Weights over HTTP: updates from disk, pauses, versions (docs/weights.md), and the versions in answers.
// Thread safety: add_weight_routes() before the server starts; the rest are free functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "http/server.h"
#include "stages/weight_control.h"

namespace millrace::api {

// Generated tokens [start, end) of one choice, and the weights that made them.
struct WeightSpan {
  uint64_t version = 0;
  int32_t start = 0, end = 0;
};

// Tokens up to `completion_tokens` are made, the new ones by `version`.
void extend_spans(std::vector<WeightSpan>& spans, uint64_t version, int32_t completion_tokens);

// "\"2\"": the label of a version as JSON. `weights` null: its number.
void append_version(std::string& out, const WeightControl* weights, uint64_t version);
// [{"version","start","end"}], the last one up to `completion_tokens`; one empty span where nothing was generated.
// Versions with one label are one span. `extra`: more members of each, such as ",\"index\":0".
void append_spans(std::string& out, const WeightControl* weights, const std::vector<WeightSpan>& spans,
                  uint64_t version, int32_t completion_tokens, const std::string& extra = "");

// `abort_all`: ends all running requests, for /update_weight_version; null: that is refused. `weights` outlives the
// server's threads.
void add_weight_routes(http::Server& server, WeightControl& weights, std::function<void()> abort_all);

}  // namespace millrace::api
