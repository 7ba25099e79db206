#include "app/text_service.h"

#include "app/commands.h"
#include "app/model_workers.h"

namespace millrace {
namespace {

PipelineEngine& engine_of_inputs(bool has_tokenize_stage, PipelineEngine& pipeline, PipelineEngine& inputs) {
  return has_tokenize_stage ? pipeline : inputs;
}

}  // namespace

TextService::TextService(TextSide side, TextServiceOptions options, PipelineBackend& backend, http::Server& server)
    : side_(std::move(side)),
      tokenizer_(side_.tokenizer, side_.chat_template, side_.max_prompt_bytes),
      engine_(std::move(options.engine), side_.facts, tokenizer_, backend),
      inputs_(backend, engine_, make_read_prompt(), make_read_request(side_.facts)),
      context_{server, engine_, kVersion, std::move(options.options_json)},
      pipeline_context_{server, engine_of_inputs(options.has_tokenize_stage, backend, inputs_), kVersion} {
  if (options.from_file) context_.pipeline = &backend;
  api::add_routes(context_);
  api::add_pipeline_run_routes(pipeline_context_);
}

TextService::~TextService() { stop(); }

void TextService::start() {
  thread_ = std::thread([this] { tokenizer_.run(); });
}

void TextService::stop() {
  tokenizer_.close();
  tokenizer_.request_stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace millrace
