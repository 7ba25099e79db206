// parse_ordered_json: a client's JSON with its keys in the client's sequence, which templates and schemas show.
//
// nlohmann::ordered_json::parse searches all keys of an object for each new one, and copies them as the object grows:
// one object of a body of 32 MB would hold a thread for hours. Here the time is proportional to the text.
//
// Thread safety: a free function without state.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace millrace {

// Only of a text that parse_json() accepted, or that dump() wrote: a malformed one is a programmer error and aborts, a
// key that stands twice in an object would stay twice, and the depth is not bounded.
nlohmann::ordered_json parse_ordered_json(std::string_view text);

}  // namespace millrace
