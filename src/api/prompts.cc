#include "api/prompts.h"

#include <nlohmann/json.hpp>

#include "api/routes.h"
#include "wire/limits.h"

namespace millrace::api {
namespace {

Result<Prompt> read_one(const Json& value, const std::string& name, int32_t vocab_size, bool add_special_tokens) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty()) return invalid_argument("{} is empty; wanted at least one character", name);
    return Prompt(TextPrompt{text, add_special_tokens});
  }
  if (!value.is_array()) {
    return invalid_argument("{} is of type {}; wanted a string or an array of token ids", name, json_type_name(value));
  }
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, read_ids(value, name, vocab_size));
  return Prompt(TokenPrompt{std::move(ids)});
}

}  // namespace

Result<std::vector<int32_t>> read_ids(const Json& array, const std::string& name, int32_t vocab_size) {
  if (!array.is_array())
    return invalid_argument("{} is of type {}; wanted an array of token ids", name, json_type_name(array));
  if (array.empty() || array.size() > wire::kMaxPromptTokens) {
    return invalid_argument("{} has {} ids; wanted 1 to {}", name, array.size(), wire::kMaxPromptTokens);
  }
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (std::size_t i = 0; i < array.size(); ++i) {
    const Json& id = array[i];
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      return invalid_argument("{}[{}] is {}; wanted an integer in [0, {})", name, i,
                              id.is_number() ? id.dump() : std::string(json_type_name(id)), vocab_size);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Result<std::vector<Prompt>> read_prompts(const Json& body, std::string_view key, std::size_t most, int32_t vocab_size) {
  const Json* prompt = json_find(body, key);
  if (!prompt) return invalid_argument("{} is missing; wanted a string, token ids, or an array of them", key);
  bool add_special_tokens = true;
  RETURN_IF_ERROR(json_read(body, "add_special_tokens", add_special_tokens));
  std::vector<Prompt> prompts;
  const bool batch = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!batch) {
    ASSIGN_OR_RETURN(Prompt one, read_one(*prompt, std::string(key), vocab_size, add_special_tokens));
    prompts.push_back(std::move(one));
    return prompts;
  }
  if (prompt->size() > most) return invalid_argument("{} has {} entries; wanted at most {}", key, prompt->size(), most);
  for (std::size_t i = 0; i < prompt->size(); ++i) {
    ASSIGN_OR_RETURN(Prompt one, read_one((*prompt)[i], fmt::format("{}[{}]", key, i), vocab_size, add_special_tokens));
    prompts.push_back(std::move(one));
  }
  return prompts;
}

}  // namespace millrace::api
