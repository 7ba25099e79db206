#include "formats/reranker_config.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/json_file.h"
#include "formats/mapped_file.h"

namespace millrace {
namespace {

constexpr uint64_t kMaxFileBytes = 1u << 20;
constexpr std::string_view kClassifier = "ForSequenceClassification";

bool is_classifier(const Json& config) {
  const Json* names = json_find(config, "architectures");
  return names && names->is_array() && !names->empty() && (*names)[0].is_string() &&
         (*names)[0].get_ref<const std::string&>().ends_with(kClassifier);
}

// As transformers has it: num_labels is the size of id2label, which is 2 where the file has neither.
int64_t label_count(const Json& config) {
  if (const Json* labels = json_find(config, "id2label"); labels && labels->is_object()) {
    return static_cast<int64_t>(labels->size());
  }
  const Json* count = json_find(config, "num_labels");
  return count && count->is_number_integer() ? count->get<int64_t>() : 2;
}

Result<std::optional<RerankerConfig>> read_head(const Json& config) {
  if (const int64_t labels = label_count(config); labels != 1) {
    return error(StatusCode::kUnsupported, "its config.json has {} labels; wanted 1, the score", labels);
  }
  return std::optional<RerankerConfig>(RerankHead{});
}

// ["no", "yes"], as vLLM's example for Qwen3-Reranker has it.
Result<std::optional<RerankerConfig>> read_classifier_tokens(const Json& tokens) {
  if (!tokens.is_array() || tokens.size() != 2 || !tokens[0].is_string() || !tokens[1].is_string()) {
    return invalid_argument(
        "classifier_from_token of its config.json is no list of two texts; wanted [\"no\", \"yes\"]");
  }
  return std::optional<RerankerConfig>(RerankTokens{tokens[0].get<std::string>(), tokens[1].get<std::string>()});
}

// "sentence_transformers.cross_encoder.modules.logit_score.LogitScore", with the tokens in its folder.
Result<std::optional<RerankerConfig>> read_modules(const std::string& dir) {
  const std::string path = dir + "/modules.json";
  ASSIGN_OR_RETURN(const bool found, file_exists(path));
  if (!found) return std::optional<RerankerConfig>();
  ASSIGN_OR_RETURN(const Json modules, read_json_file(path, kMaxFileBytes));
  for (const Json& module : modules.is_array() ? modules : Json::array()) {
    std::string type, folder;
    RETURN_IF_ERROR(json_read(module, "type", type).with_prefix(path));
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name != "LogitScore" && name != "CausalScoreHead") continue;
    RETURN_IF_ERROR(json_read(module, "path", folder).with_prefix(path));
    if (folder.find("..") != std::string::npos || folder.starts_with('/')) {
      return invalid_argument("{} has the path '{}'; wanted a folder beside it", path, folder.substr(0, 64));
    }
    const std::string tokens_path = dir + "/" + folder + "/config.json";
    ASSIGN_OR_RETURN(const Json tokens, read_json_file(tokens_path, kMaxFileBytes));
    int64_t yes = -1, no = -1;
    RETURN_IF_ERROR(json_read(tokens, "true_token_id", yes).with_prefix(tokens_path));
    RETURN_IF_ERROR(json_read(tokens, "false_token_id", no).with_prefix(tokens_path));
    if (yes < 0 || no < 0 || yes > INT32_MAX || no > INT32_MAX) {
      return error(StatusCode::kUnsupported, "{} has the tokens {} and {}; wanted true_token_id and false_token_id",
                   tokens_path, yes, no);
    }
    return std::optional<RerankerConfig>(RerankTokens{static_cast<int32_t>(no), static_cast<int32_t>(yes)});
  }
  return std::optional<RerankerConfig>();
}

}  // namespace

Result<std::optional<RerankerConfig>> read_reranker_config(const std::string& model_dir) {
  const std::string path = model_dir + "/config.json";
  ASSIGN_OR_RETURN(const bool found, file_exists(path));
  if (!found) return std::optional<RerankerConfig>();
  ASSIGN_OR_RETURN(const Json config, read_json_file(path, kMaxFileBytes));
  if (!config.is_object()) return std::optional<RerankerConfig>();
  if (const Json* tokens = json_find(config, "classifier_from_token")) return read_classifier_tokens(*tokens);
  if (is_classifier(config)) return read_head(config);
  return read_modules(model_dir);
}

}  // namespace millrace
