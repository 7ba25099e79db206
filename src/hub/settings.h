// HubSettings: which hub is asked, with which token, and where models are kept: the environment of the Hugging Face
// tools, so that both share one cache and one login.
//
//   HF_ENDPOINT                          the hub's address; without it the one that the build has as its default, if
//   any HF_TOKEN, HUGGING_FACE_HUB_TOKEN     the token; else the file HF_TOKEN_PATH, or `token` below HF_HOME
//   HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE  the cache; else `hub` below HF_HOME
//   HF_HOME                              else huggingface below XDG_CACHE_HOME or ~/.cache
//   HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE 1, ON, YES or TRUE: no network
//   HF_HUB_DISABLE_IMPLICIT_TOKEN        the same: no token is sent
//
// Thread safety: values and free functions.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "base/status.h"

namespace millrace::hub {

inline constexpr std::size_t kMaxTokenBytes = 1024;

struct HubSettings {
  std::string endpoint;  // "https://hub.example", without a slash at its end; "": none is known
  std::string token;     // "": none. In no message and in no child's environment
  std::string cache;     // a folder, which may not be there yet
  bool offline = false;
};

// As std::getenv; nullptr: not set.
using ReadVariable = std::function<const char*(const char*)>;

// kInvalidArgument names the variable, with the value seen unless it is a token.
Result<HubSettings> read_settings(const ReadVariable& get);

// What to do where no hub is known. kInvalidArgument.
Status no_endpoint();

}  // namespace millrace::hub
