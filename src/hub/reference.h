// ModelReference: how a user names a model of a hub: ORG/NAME, ORG/NAME:QUANT.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::hub {

inline constexpr std::size_t kMaxNameBytes = 96;    // of ORG and of NAME, each; the hub's own limit
inline constexpr std::size_t kMaxQuantBytes = 128;  // a file's name is one too
inline constexpr std::size_t kMaxRevisionBytes = 255;

struct ModelReference {
  std::string repository;  // "ORG/NAME"
  std::string quant;       // of a repository of GGUF files; "": none is named

  std::string text() const { return quant.empty() ? repository : repository + ":" + quant; }
};

// kInvalidArgument: no such name. What passes is one folder's name in the cache and needs no escapes in a URL.
Result<ModelReference> parse_reference(std::string_view text);

// A branch, a tag or a commit: "main", "refs/pr/3", 40 hexadecimal digits.
Status check_revision(std::string_view revision);
// Whether it is a commit's hash.
bool is_commit(std::string_view revision);

}  // namespace millrace::hub
