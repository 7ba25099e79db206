#include "api/health.h"

#include <fmt/format.h>

#include "api/weight_answers.h"
#include "base/json.h"

namespace millrace::api {

void append_stage(std::string& out, const wire::StageStatus& stage) {
  out += "{\"stage\":";
  json_append_string(out, stage.stage);
  out += fmt::format(",\"state\":\"{}\",\"message\":", wire::stage_state_name(stage.state));
  json_append_string(out, stage.message);
  out += fmt::format(
      ",\"progress\":{:.3f},\"incarnation\":{},\"steps\":{},\"running\":{},\"waiting\":{},\"pages_total\":{},\"pages_"
      "free\":{},"
      "\"pages_cached\":{},\"page_size\":{}}}",
      stage.progress, stage.incarnation, stage.steps, stage.running, stage.waiting, stage.pages_total, stage.pages_free,
      stage.pages_cached, stage.page_size);
}

void append_weights(std::string& out, const WeightsState& weights) {
  out += fmt::format("{{\"state\":\"{}\",\"paused\":{},\"weight_version\":", phase_name(weights.phase), weights.paused);
  json_append_string(out, weights.label);
  append_progress(out, weights);
  out += '}';
}

http::Response health_response(const Health& health) {
  std::string out = health.ready ? "{\"ready\":true,\"reason\":" : "{\"ready\":false,\"reason\":";
  json_append_string(out, health.reason);
  out += ",\"stages\":[";
  for (std::size_t i = 0; i < health.stages.size(); ++i) {
    if (i) out += ',';
    append_stage(out, health.stages[i]);
  }
  out += ']';
  if (health.weights) {
    out += ",\"weights_update\":";
    append_weights(out, *health.weights);
  }
  out += '}';
  http::Response response{.status = health.ready ? 200 : 503, .body = std::move(out)};
  if (!health.ready) response.headers.set("Retry-After", "1");
  return response;
}

}  // namespace millrace::api
