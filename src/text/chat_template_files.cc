#include "text/chat_template_files.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json.h"
#include "text/chat_template.h"

namespace millrace {
namespace {

// tokenizer_config.json lists every added token of some models: 180 kB for Mistral's, some MB at most.
constexpr size_t kMaxConfigBytes = size_t{32} << 20;

constexpr std::string_view kSpecialTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                   "pad_token", "cls_token", "mask_token"};

// nullopt: there is no such file.
Result<std::optional<std::string>> read_file(const std::string& path, size_t max_bytes) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return std::optional<std::string>();
  auto size = static_cast<std::streamoff>(file.tellg());
  if (size < 0) return error(StatusCode::kNotFound, "{}: cannot be read", path);
  if (static_cast<size_t>(size) > max_bytes) {
    return error(StatusCode::kTooLarge, "{} has {} bytes; the limit is {}", path, static_cast<size_t>(size), max_bytes);
  }
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(text.data(), size)) return error(StatusCode::kNotFound, "{}: cannot be read", path);
  return std::optional<std::string>(std::move(text));
}

Result<std::optional<Json>> read_json(const std::string& path) {
  ASSIGN_OR_RETURN(std::optional<std::string> text, read_file(path, kMaxConfigBytes));
  if (!text) return std::optional<Json>();
  Result<Json> json = parse_json(*text);
  if (!json.ok()) return json.status().with_prefix(path);
  if (!json->is_object()) return invalid_argument("{} is {}; wanted an object", path, json_type_name(*json));
  return std::optional<Json>(std::move(*json));
}

// "chat_template" of a JSON file: a string, or a list of {name, template}.
Status take_template(const Json& config, const std::string& file_name, ChatTemplateFiles& out) {
  const Json* value = json_find(config, "chat_template");
  if (value == nullptr) return ok_status();
  std::string name = file_name + ": chat_template";
  if (value->is_string()) {
    out.main = ChatTemplateFile{name, value->get<std::string>()};
    return ok_status();
  }
  if (!value->is_array()) {
    return invalid_argument("{} is {}; wanted a string or an array", name, json_type_name(*value));
  }
  for (const Json& entry : *value) {
    if (!entry.is_object()) return invalid_argument("{} holds {}; wanted objects", name, json_type_name(entry));
    std::string entry_name, text;
    RETURN_IF_ERROR(json_read(entry, "name", entry_name).with_prefix(name));
    RETURN_IF_ERROR(json_read(entry, "template", text).with_prefix(name));
    ChatTemplateFile file{fmt::format("{} '{}'", name, entry_name), std::move(text)};
    if (entry_name == "default")
      out.main = std::move(file);
    else if (entry_name == "tool_use")
      out.tool_use = std::move(file);
  }
  if (!out.main && !value->empty()) return invalid_argument("{} has no entry named 'default'", name);
  return ok_status();
}

// A token is a string, or an object with its text in "content".
void take_special_tokens(const Json& config, ChatTemplateFiles& out) {
  for (std::string_view name : kSpecialTokenNames) {
    const Json* value = json_find(config, name);
    if (value != nullptr && value->is_object()) value = json_find(*value, "content");
    if (value != nullptr && value->is_string()) out.special_tokens.emplace_back(name, value->get<std::string>());
  }
}

}  // namespace

Result<ChatTemplateFiles> read_chat_template_files(const std::string& model_dir) {
  ChatTemplateFiles out;
  ASSIGN_OR_RETURN(std::optional<Json> config, read_json(model_dir + "/tokenizer_config.json"));
  if (config) take_special_tokens(*config, out);

  std::string path = model_dir + "/chat_template.jinja";
  ASSIGN_OR_RETURN(std::optional<std::string> text, read_file(path, kMaxChatTemplateBytes));
  if (text) {
    out.main = ChatTemplateFile{"chat_template.jinja", std::move(*text)};
    // As transformers writes it, and as some repositories have it.
    for (const char* name : {"additional_chat_templates/tool_use.jinja", "chat_templates/tool_use.jinja"}) {
      ASSIGN_OR_RETURN(std::optional<std::string> tools,
                       read_file(fmt::format("{}/{}", model_dir, name), kMaxChatTemplateBytes));
      if (!tools) continue;
      out.tool_use = ChatTemplateFile{name, std::move(*tools)};
      break;
    }
    return out;
  }
  ASSIGN_OR_RETURN(std::optional<Json> template_json, read_json(model_dir + "/chat_template.json"));
  if (template_json) RETURN_IF_ERROR(take_template(*template_json, "chat_template.json", out).with_prefix(model_dir));
  if (!out.main && config) {
    RETURN_IF_ERROR(take_template(*config, "tokenizer_config.json", out).with_prefix(model_dir));
  }
  return out;
}

}  // namespace millrace
