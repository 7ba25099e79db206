// /ready and /health: the same answer for every engine. Thread safety: free function.
#pragma once

#include "http/message.h"
#include "stages/engine.h"

namespace millrace::api {

// 200 when requests are accepted now, else 503 with the reason.
http::Response health_response(const Health& health);

}  // namespace millrace::api
