// The operator's commands to all stages: /flush_cache, /start_profile, /stop_profile. Each stage answers for itself;
// the HTTP answer has all of their words. For users: docs/api.md.
//
// Thread safety: before the server starts; `send` is called by handlers, any thread.
#pragma once

#include <functional>
#include <vector>

#include "http/server.h"
#include "wire/messages.h"

namespace millrace::api {

// Gives one to the engine; `done` is called once, with the replies of the stages.
using SendCommand = std::function<void(wire::AdminAction action, int64_t timeout_ms,
                                       std::function<void(std::vector<wire::AdminReply>)> done)>;

void add_command_routes(http::Server& server, SendCommand send);

}  // namespace millrace::api
