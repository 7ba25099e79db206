#include "app/text_service.h"

#include "api/prompt_values.h"
#include "api/reply_format.h"
#include "api/response_file.h"
#include "app/commands.h"
#include "app/web_files.h"

namespace millrace {
namespace {

PipelineEngine& engine_of_inputs(bool has_tokenize_stage, PipelineEngine& pipeline, PipelineEngine& inputs) {
  return has_tokenize_stage ? pipeline : inputs;
}

}  // namespace

TextService::TextService(TextComponents components, TextServiceOptions options, PipelineEngine& pipeline,
                         http::Server& server)
    : components_(std::move(components)),
      media_fetcher_(std::move(options.media_fetcher)),
      tokenizer_(components_.tokenizer, components_.chat_template, components_.max_prompt_bytes),
      engine_(options.engine, components_.facts, tokenizer_, pipeline),
      inputs_(
          pipeline, engine_, options.engine.terminal,
          [](const Value& payload) { return api::read_prompt(payload, false); },
          [this](const Value& payload) { return api::read_request(payload, components_.facts); }),
      context_{server, engine_, kVersion, std::move(options.options_json)},
      pipeline_context_{server, engine_of_inputs(options.has_tokenize_stage, pipeline, inputs_), kVersion,
                        options.record.spans} {
  if (options.from_file) context_.pipeline = &pipeline;
  if (!options.names.names.empty()) context_.names.names = std::move(options.names.names);
  context_.names.any = options.names.any;
  context_.names.required = options.names.required;
  context_.public_models = options.public_models;
  context_.state->responses.set_limits(options.response_store_bytes, options.response_store_seconds);
  context_.media_fetcher = media_fetcher_.get();
  context_.hello = !options.web;
  context_.state->record = std::move(options.record);
  if (options.web) http::add_static_files(server, web_files());
  api::add_routes(context_);
  api::add_pipeline_run_routes(pipeline_context_);
}

TextService::~TextService() { stop(); }

Status TextService::keep_responses_in(const std::string& file) {
  auto opened = api::ResponseFile::open(file);
  const Status status =
      opened.ok() ? context_.state->responses.keep_in(std::move(*opened), api::unix_seconds()) : opened.status();
  return status.with_prefix("--response-store-file");
}

Status start_server(http::Server& server, std::optional<TextService>& service, const std::string& response_file) {
  if (service && !response_file.empty()) RETURN_IF_ERROR(service->keep_responses_in(response_file));
  return server.start();
}

void TextService::start() {
  thread_ = std::thread([this] { tokenizer_.run(); });
}

void TextService::stop() {
  if (media_fetcher_) media_fetcher_->stop();
  tokenizer_.close();
  tokenizer_.request_stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace millrace
