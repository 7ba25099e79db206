#include "formats/pooling_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/mapped_file.h"

namespace millrace {
namespace {

constexpr uint64_t kMaxFileBytes = 1u << 20;
constexpr std::string_view kLastToken = "pooling_mode_lasttoken";
constexpr std::string_view kPoolingMode = "pooling_mode_";

Result<Json> read_json(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxFileBytes));
  auto json = parse_json(text);
  if (!json.ok()) return json.status().with_prefix(path);
  return json;
}

// "sentence_transformers.models.Transformer" and, in newer files, "...base.modules.transformer.Transformer".
Status check_modules(const Json& modules, const std::string& path) {
  if (!modules.is_array()) return invalid_argument("{} is of type {}; wanted a list", path, json_type_name(modules));
  for (const Json& module : modules) {
    std::string type;
    RETURN_IF_ERROR(json_read(module, "type", type).with_prefix(path));
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Transformer" || name == "Pooling" || name == "Normalize") continue;
    return error(StatusCode::kUnsupported, "{} has the module {}; wanted Transformer, Pooling and Normalize alone",
                 path, name);
  }
  return ok_status();
}

// One of several is true; `pooling_mode: "lasttoken"` in newer files.
Status check_pooling(const Json& pooling, const std::string& path) {
  if (!pooling.is_object()) {
    return invalid_argument("{} is of type {}; wanted an object", path, json_type_name(pooling));
  }
  std::string mode;
  RETURN_IF_ERROR(json_read(pooling, "pooling_mode", mode).with_prefix(path));
  bool last = mode == "lasttoken";
  for (const auto& [key, value] : pooling.items()) {
    if (!key.starts_with(kPoolingMode) || value != true) continue;
    if (key == kLastToken) {
      last = true;
    } else {
      mode = key;
    }
  }
  if (last && (mode.empty() || mode == "lasttoken")) return ok_status();
  return error(StatusCode::kUnsupported, "{} has {}; wanted {}", path, mode.empty() ? "no pooling mode" : mode,
               kLastToken);
}

}  // namespace

Status check_last_token_pooling(const std::string& model_dir) {
  const std::string modules_path = model_dir + "/modules.json", pooling_path = model_dir + "/1_Pooling/config.json";
  if (!std::filesystem::exists(modules_path)) return ok_status();
  ASSIGN_OR_RETURN(const Json modules, read_json(modules_path));
  RETURN_IF_ERROR(check_modules(modules, modules_path));
  ASSIGN_OR_RETURN(const Json pooling, read_json(pooling_path));
  return check_pooling(pooling, pooling_path);
}

}  // namespace millrace
