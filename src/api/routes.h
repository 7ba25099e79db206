// The HTTP surface: every route, in one call, and what the handlers share.
//
// Endpoint families: chat.cc (/v1/chat/completions), completions.cc (/v1/completions), tokens.cc (/tokenize,
// /detokenize), service.cc (/v1/models, /live, /ready, /health, /version, /). Thread safety: add_routes() before the
// server starts; handlers run on the HTTP thread.
#pragma once

#include <string>

#include "http/server.h"
#include "stages/engine.h"

namespace millrace::api {

struct ApiContext {
  http::Server& server;
  Engine& engine;
  std::string version;  // of this build
};

inline constexpr std::size_t kMaxMessages = 4096;  // of one conversation
inline constexpr std::size_t kMaxPrompts = 64;     // of one completions request

// The context outlives the server's io thread.
void add_routes(ApiContext& context);

// A POST route whose handler either takes the responder along or says why not, which becomes the error response.
using PostHandler = Status (*)(ApiContext&, const http::Request&, const http::ResponderPtr&);
void add_post_route(ApiContext& context, const std::string& pattern, PostHandler handle);

void add_chat_routes(ApiContext& context);
void add_completions_routes(ApiContext& context);
void add_token_routes(ApiContext& context);
void add_service_routes(ApiContext& context);

}  // namespace millrace::api
