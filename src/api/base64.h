// Base64 with padding (RFC 4648), as JSON bodies have bytes. Thread safety: free function.
#pragma once

#include <cstddef>
#include <string>

namespace millrace::api {

void append_base64(std::string& out, const void* data, std::size_t size);

}  // namespace millrace::api
