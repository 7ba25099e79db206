// A JSON document that was cut off, as the nearest complete one: what is not complete in it is left out, and what is
// open is closed. For answers that have a document where others have its text.
//
// Thread safety: free function.
#pragma once

#include <string>
#include <string_view>

namespace millrace::api {

// `text`: an object, or its beginning. A complete one stays as it is, byte for byte.
std::string complete_json(std::string_view text);

}  // namespace millrace::api
