// How a prompt begins, for people who look at a server: plain text its first bytes, of a conversation the last turn of
// the user. Prompts of token ids have none.
//
// Thread safety: pure function.
#pragma once

#include <cstddef>
#include <string>

#include "stages/prompt.h"

namespace millrace::api {

inline constexpr std::size_t kMaxPreviewBytes = 240;

std::string prompt_preview(const Prompt& prompt);

}  // namespace millrace::api
