#include "api/realtime/server_events.h"

#include "api/reply_format.h"

namespace millrace::api {
nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

nlohmann::ordered_json server_event(std::string_view type) { return {{"type", type}, {"event_id", make_id("event_")}}; }

std::string event_line(const nlohmann::ordered_json& event) {
  return event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json error_event(const ApiError& error, const std::string& client_event) {
  nlohmann::ordered_json out = server_event("error");
  out["error"] = {{"type", error_type(error.http_status)},
                  {"code", or_null(error.code)},
                  {"message", error.message},
                  {"param", or_null(error.param)},
                  {"event_id", or_null(client_event)}};
  return out;
}

}  // namespace millrace::api
