// The HTTP surface: every route, in one call, and what the handlers share.
//
// Endpoint families: chat.cc (/v1/chat/completions), messages.cc (/v1/messages), responses.cc and
// stored_responses.cc (/v1/responses), ollama.cc and ollama_models.cc (/api/...), llama.cc (/completion,
// /apply-template, /props), llama_slots.cc (/slots), completions.cc
// (/v1/completions), transcriptions.cc (/v1/audio/transcriptions), speech.cc (/v1/audio/speech), generate.cc
// (/generate), embeddings.cc (/v1/embeddings, /api/embed, /api/embeddings), rerank.cc (/v1/rerank), tokens.cc
// (/tokenize, /detokenize), service.cc (/v1/models, /live, /ready, /health, /version, and / without the web page),
// info.cc (/server_info, /model_info, /metrics), admin.cc (/abort_request, /flush_cache, /start_profile,
// /stop_profile), live_view.cc
// (/live/events), realtime/ (/v1/realtime).
//
// Thread safety: add_routes() before the server starts. Handlers run on the HTTP server's two threads, at the same time
// (http/server.h): what they share is the ApiContext, which is constant then, and behind it the Engine, the
// PipelineEngine, the Server and ApiState's members, which any thread may use.
#pragma once

#include <memory>
#include <string>

#include "api/answer_memory.h"
#include "api/model_names.h"
#include "api/request_metrics.h"
#include "api/request_names.h"
#include "api/request_record.h"
#include "api/response_store.h"
#include "api/spoken_turns.h"
#include "http/server.h"
#include "stages/engine.h"
#include "stages/pipeline_engine.h"

namespace millrace::api {

class MediaFetcher;

// What outlives single requests: shared, because a request may end after its server has.
struct ApiState {
  explicit ApiState(const std::string& model_name)
      : metrics("millrace:", {{"model_name", model_name}}), requests(metrics) {}

  RequestRecord record;
  Metrics metrics;
  RequestMetrics requests;
  RequestNames live;
  AnswerMemory answers;
  SpokenTurns spoken;
  ResponseStore responses;
};

struct ApiContext {
  http::Server& server;
  Engine& engine;
  std::string version;              // of this build
  std::string options_json = "{}";  // what the server was started with, an object for /server_info: no secrets
  // Of a pipeline from a file: its stages stand in /ready and /metrics as it names them. null: of text as it is built
  // in.
  PipelineEngine* pipeline = nullptr;
  ModelNames names = {{engine.model().name}};
  MediaFetcher* media_fetcher = nullptr;  // null: no URL is fetched
  bool public_models = false;             // /v1/models needs no key
  bool hello = true;                      // GET / names the server; false: the web page is there
  std::shared_ptr<ApiState> state = std::make_shared<ApiState>(engine.model().name);
};

inline constexpr std::size_t kMaxMessages = 4096;  // of one conversation
inline constexpr std::size_t kMaxPrompts = 64;     // of one completions or generate request

// The context outlives the server's threads.
void add_routes(ApiContext& context);

// Of a request that is refused by its handler: the counter and the line in the log.
void note_refusal(ApiContext& context, const http::RequestLabel& request, const Status& why);

// A POST route whose handler either takes the responder along or returns why not, which becomes the error response.
using PostHandler = Status (*)(ApiContext&, const http::Request&, const http::ResponderPtr&);
void add_post_route(ApiContext& context, const std::string& pattern, PostHandler handle,
                    http::Access access = http::Access::kUser);
// The same for another method.
void add_fallible_route(ApiContext& context, const char* method, const std::string& pattern, PostHandler handle,
                        http::Access access);

// A POST route whose body may be a form.
void add_upload_route(ApiContext& context, const std::string& pattern, PostHandler handle);

void add_chat_routes(ApiContext& context);
void add_audio_routes(ApiContext& context);
void add_speech_routes(ApiContext& context);
void add_realtime_routes(ApiContext& context);
void add_messages_routes(ApiContext& context);
void add_ollama_routes(ApiContext& context);
void add_llama_routes(ApiContext& context);
void add_slot_route(ApiContext& context);
void add_responses_routes(ApiContext& context);
void add_stored_response_routes(ApiContext& context, const std::string& path);
// `path`/compact, which is not served: a 404. It would be a 405 otherwise, as for the id of any response.
void add_compaction_refusal(http::Server& server, const std::string& path);
void add_completions_routes(ApiContext& context);
void add_generate_routes(ApiContext& context);
void add_embedding_routes(ApiContext& context);
void add_rerank_routes(ApiContext& context);
void add_token_routes(ApiContext& context);
void add_service_routes(ApiContext& context);
void add_info_routes(ApiContext& context);
void add_admin_routes(ApiContext& context);
void add_live_routes(ApiContext& context);

}  // namespace millrace::api
