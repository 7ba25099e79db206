#include "api/ollama_options.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "api/content_blocks.h"
#include "api/unserved_fields.h"
#include "base/nearest.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

// An option, and the field of a chat that it is.
constexpr std::pair<const char*, const char*> kServed[] = {{"temperature", "temperature"},
                                                           {"top_k", "top_k"},
                                                           {"top_p", "top_p"},
                                                           {"min_p", "min_p"},
                                                           {"seed", "seed"},
                                                           {"num_predict", "max_tokens"},
                                                           {"stop", "stop"},
                                                           {"repeat_penalty", "repetition_penalty"},
                                                           {"presence_penalty", "presence_penalty"},
                                                           {"frequency_penalty", "frequency_penalty"}};

// All that are known: the served ones, those that are refused, and those without effect.
constexpr std::string_view kKnown[] = {"temperature", "top_k", "top_p", "min_p", "seed", "num_predict", "stop",
                                       "repeat_penalty", "presence_penalty", "frequency_penalty",
                                       // Refused, but for values that ask for nothing.
                                       "repeat_last_n", "typical_p", "tfs_z", "mirostat", "penalize_newline",
                                       // The context is the model's, and never shifted.
                                       "num_ctx", "num_keep",
                                       // How the model is loaded and computed.
                                       "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv", "logits_all",
                                       "vocab_only", "use_mmap", "use_mlock", "num_thread", "numa", "embedding_only",
                                       // Of mirostat.
                                       "mirostat_tau", "mirostat_eta"};

// Values that mean what an absent field means: no bound, and a random seed.
bool is_absent(std::string_view option, const OrderedJson& value) {
  if (value.is_null()) return true;
  return option == "num_predict" ? value == -1 || value == -2 : option == "seed" && value == -1;
}

}  // namespace

Status translate_ollama_options(const Json& body, const OrderedJson& ordered, OrderedJson& chat) {
  const Json* options = json_find(body, "options");
  if (!options) return ok_status();
  if (!options->is_object()) return wrong_type("options", *options, "an object");
  for (const auto& [key, value] : options->items()) {
    if (std::ranges::find(kKnown, key) != std::end(kKnown)) continue;
    return invalid_argument("options.{} is no known option{}", key.substr(0, kShownBytes), suggestion(key, kKnown));
  }
  for (const Status& status : {refuse_unserved_ollama_options(*options), refuse_penalty_window(*options)}) {
    if (!status.ok()) return Status(status.code(), "options." + status.message());
  }
  const OrderedJson& given = ordered.at("options");
  for (const auto& [option, field] : kServed) {
    const auto value = given.find(option);
    if (value != given.end() && !is_absent(option, *value)) chat[field] = *value;
  }
  return ok_status();
}

Status with_option_name(const Status& status, const Json& body) {
  const Json* options = json_find(body, "options");
  if (status.ok() || !options) return status;
  for (const auto& [option, field] : kServed) {
    const std::string name = std::string(field) + " ";
    if (!status.message().starts_with(name) || !json_find(*options, option)) continue;
    return Status(status.code(), fmt::format("options.{} {}", option, status.message().substr(name.size())));
  }
  return status;
}

}  // namespace millrace::api
