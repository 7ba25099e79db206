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

// Of a text that parse_json() accepted, or that dump() wrote: a key that stands twice in an object would stay twice,
// and the depth is not bounded. Of malformed text it throws what ordered_json::parse() throws.
nlohmann::ordered_json parse_ordered_json(std::string_view text);

}  // namespace millrace
