// What every event of the server has: its type and an id. And the events that several places write.
//
// Thread safety: free functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "api/error.h"

namespace millrace::api {

// {"type": ..., "event_id": ...}, to add members to.
nlohmann::ordered_json server_event(std::string_view type);
// null where it is empty.
nlohmann::ordered_json or_null(const std::string& text);
// As one line.
std::string event_line(const nlohmann::ordered_json& event);
// `client_event`: the event_id that the client gave the event at fault; "": none.
nlohmann::ordered_json error_event(const ApiError& error, const std::string& client_event);

}  // namespace millrace::api
