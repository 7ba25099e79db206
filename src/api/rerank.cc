// POST /v1/rerank, /rerank and /v2/rerank: how well each of some documents answers a query, in the forms of Cohere's
// and Jina's clients. Qwen3-Reranker reads each pair in a prompt of its own (Zhang et al., "Qwen3 Embedding", 2025),
// and the score is the share of "yes" of the logits of "yes" and "no", or the model's head has it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "api/choices.h"
#include "api/reply.h"
#include "api/rerank_fields.h"
#include "api/routes.h"
#include "base/json.h"

namespace millrace::api {
namespace {

constexpr const char* kSystem =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
constexpr const char* kEnd = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

// What the model was trained with; special tokens come from the template alone.
SegmentPrompt prompt_of(const RerankFields& fields, const std::string& document) {
  return {
      {{kSystem, true},
       {fmt::format("<Instruct>: {}\n<Query>: {}\n<Document>: {}", fields.instruction, fields.query, document), false},
       {kEnd, true}}};
}

// Query and instruction stand in the prompt of each document.
Status check_pair_volume(const RerankFields& fields) {
  const std::size_t bytes = fields.query.size() + fields.instruction.size(), documents = fields.documents.size();
  if (bytes <= kMaxPromptVolumeBytes / documents) return ok_status();
  return invalid_argument(
      "documents has {} entries, each with the {} bytes of query and instruction; wanted at most {} "
      "bytes of prompts in all",
      documents, bytes, kMaxPromptVolumeBytes);
}

class RerankFormat : public ReplyFormat {
 public:
  RerankFormat(RerankFields fields, std::string id, const RerankFacts& facts)
      : fields_(std::move(fields)), id_(std::move(id)), facts_(facts), scores_(fields_.documents.size()) {}

  void events(const ChoiceState& /*choice*/, EventWriter& /*out*/) override {}

  Status finish(const ChoiceState& choice) override {
    RETURN_IF_ERROR(check_not_aborted(choice, "score"));
    const auto index = static_cast<std::size_t>(choice.index);
    double logit = 0;  // of the score
    if (facts_.head.empty()) {
      if (choice.logprobs.empty() || choice.logprobs.front().of_ids.size() != facts_.tokens.size()) {
        return internal_error("document {} came back without its logits", choice.index);
      }
      const std::vector<double>& of_ids = choice.logprobs.front().of_ids;
      logit = of_ids[1] - of_ids[0];
    } else {
      if (choice.embedding.size() != facts_.head.size()) {
        return internal_error("document {} has a row of {} values; wanted {}", choice.index, choice.embedding.size(),
                              facts_.head.size());
      }
      logit = std::inner_product(choice.embedding.begin(), choice.embedding.end(), facts_.head.begin(), 0.0,
                                 std::plus<>(), [](float a, float b) { return double{a} * b; });
    }
    scores_[index] = 1 / (1 + std::exp(-logit));
    if (std::isfinite(scores_[index])) return ok_status();
    return internal_error("document {} has the score {}; wanted a finite one", choice.index, scores_[index]);
  }

  std::string choice(const ChoiceState& /*choice*/) override { return ""; }

  std::string body(std::string /*choices*/, const wire::Usage& usage) override {
    std::vector<std::size_t> best(scores_.size());
    std::iota(best.begin(), best.end(), std::size_t{0});
    std::stable_sort(best.begin(), best.end(), [&](std::size_t a, std::size_t b) { return scores_[a] > scores_[b]; });
    best.resize(std::min(best.size(), fields_.top_n));
    std::string out = "{\"id\":";
    json_append_string(out, id_);
    out += ",\"model\":";
    json_append_string(out, fields_.model);
    out += ",\"results\":[";
    for (const std::size_t index : best) {
      if (index != best.front()) out += ',';
      fmt::format_to(std::back_inserter(out), R"({{"index":{},"relevance_score":{})", index, scores_[index]);
      if (fields_.return_documents) {
        out += R"(,"document":{"text":)";
        json_append_string(out, fields_.documents[index]);
        out += '}';
      }
      out += '}';
    }
    const int32_t tokens = usage.prompt_tokens;
    return out + fmt::format(R"(],"usage":{{"prompt_tokens":{},"total_tokens":{}}},"meta":{{"api_version":)"
                             R"({{"version":"2"}},"tokens":{{"input_tokens":{},"output_tokens":0}}}}}})",
                             tokens, tokens, tokens);
  }

 private:
  const RerankFields fields_;
  const std::string id_;
  const RerankFacts& facts_;  // the engine's
  std::vector<double> scores_;
};

Status rerank(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder, bool documents) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  ASSIGN_OR_RETURN(std::string name, context.names.read(body));
  ASSIGN_OR_RETURN(RerankFields fields, read_rerank_fields(body, model, documents));
  fields.model = std::move(name);
  RETURN_IF_ERROR(check_pair_volume(fields));
  RETURN_IF_ERROR(read_rank(request, fields.request));
  const RerankFacts& facts = *model.rerank;
  SamplingFields sampling;
  sampling.max_tokens = facts.head.empty() ? 1 : 0;
  if (facts.head.empty()) {
    sampling.params.temperature = 0;
    sampling.params.top_logprobs = 0;
    sampling.params.logprob_token_ids.assign(facts.tokens.begin(), facts.tokens.end());
  }
  std::vector<Prompt> prompts;
  for (const std::string& document : fields.documents) prompts.emplace_back(prompt_of(fields, document));
  const std::size_t count = prompts.size();
  std::vector<GenerateRequest> requests = make_requests(std::move(prompts), {&sampling, 1}, fields.request, 1);
  for (GenerateRequest& each : requests) each.embed = !facts.head.empty();
  const std::string id = fields.rid.empty() ? make_id("rerank-") : fields.rid;
  auto format = std::make_unique<RerankFormat>(std::move(fields), id, facts);
  auto reply = std::make_shared<Reply>(context, responder, std::move(format), ReplyOptions{});
  reply->start(std::move(requests), {{id, 0, count}});
  return ok_status();
}

}  // namespace

void add_rerank_routes(ApiContext& context) {
  for (const char* path : {"/v1/rerank", "/rerank"}) {
    add_post_route(context, path,
                   [](ApiContext& api, const http::Request& request, const http::ResponderPtr& responder) {
                     return rerank(api, request, responder, true);
                   });
  }
  add_post_route(context, "/v2/rerank",
                 [](ApiContext& api, const http::Request& request, const http::ResponderPtr& responder) {
                   return rerank(api, request, responder, false);
                 });
}

}  // namespace millrace::api
