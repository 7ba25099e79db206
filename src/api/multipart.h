// Bodies of type multipart/form-data (RFC 7578): what forms and OpenAI's clients upload files with.
//
// Thread safety: free functions; parts refer to the body's text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::api {

inline constexpr std::size_t kMaxFormParts = 64;
inline constexpr std::size_t kMaxPartHeadBytes = 4096;  // of a part's header fields, together
inline constexpr std::size_t kMaxBoundaryBytes = 70;    // RFC 2046, 5.1.1

struct FormPart {
  std::string name;
  std::string filename;  // "": the part is no file, or its name is not given
  std::string_view content;
};

// `content_type`: the value of the request's header. kUnsupported: another type. kInvalidArgument: malformed, or a
// limit exceeded, with what was wanted. An error never echoes the content.
Result<std::vector<FormPart>> read_form(std::string_view content_type, std::string_view body);

}  // namespace millrace::api
