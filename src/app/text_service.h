// TextService: the text API of a running pipeline: the tokenizer's threads, the Engine over the pipeline, and the HTTP
// routes of both.
//
// Owned by serve, after the backend and before the server's end. Thread safety: the main thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "api/media_fetcher.h"
#include "api/pipelines.h"
#include "api/routes.h"
#include "stages/generating/loading.h"
#include "stages/pipeline_engine.h"
#include "stages/text_engine.h"
#include "stages/text_inputs.h"

namespace millrace {

struct TextServiceOptions {
  TextEngineOptions engine;
  std::string options_json = "{}";                   // for /server_info
  api::ModelNames names;                             // none: the model's own
  std::unique_ptr<api::MediaFetcher> media_fetcher;  // null: no URL of a picture or audio is fetched
  bool public_models = false;
  bool web = true;  // the web page is at /
  api::RequestRecord record;
  std::size_t response_store_bytes = api::kDefaultStoredBytes;
  int64_t response_store_seconds = api::kDefaultStoredSeconds;
  bool from_file = false;           // the pipeline's stages go by their names in its file
  bool has_tokenize_stage = false;  // named inputs go to the pipeline's tokenizer stage
};

class TextService {
 public:
  // Adds the routes, before the server starts. `pipeline` and `server` must outlive it.
  TextService(TextComponents components, TextServiceOptions options, PipelineEngine& pipeline, http::Server& server);
  ~TextService();  // stop()

  // Stored answers outlive the process in this file. Before the server starts.
  Status keep_responses_in(const std::string& file);
  void start();
  // What waits is answered with kUnavailable.
  void stop();
  const ModelFacts& model() const { return engine_.model(); }

 private:
  const TextComponents components_;
  const std::unique_ptr<api::MediaFetcher> media_fetcher_;
  TokenizerStage tokenizer_;
  TextEngine engine_;
  TextInputs inputs_;
  api::ApiContext context_;
  api::PipelineContext pipeline_context_;
  std::thread thread_;
};

// With the stored answers of a service that has some; an empty `response_file`: they do not outlive the process.
Status start_server(http::Server& server, std::optional<TextService>& service, const std::string& response_file);

}  // namespace millrace
