#include "formats/pooling_config.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/json_file.h"
#include "formats/mapped_file.h"

namespace millrace {
namespace {

constexpr uint64_t kMaxFileBytes = 1u << 20;
constexpr std::string_view kLastToken = "pooling_mode_lasttoken", kMean = "pooling_mode_mean_tokens";
constexpr std::string_view kPoolingMode = "pooling_mode_";

// "sentence_transformers.models.Transformer" and, in newer files, "...base.modules.transformer.Transformer".
Status read_modules(const Json& modules, const std::string& path, PoolingConfig& out) {
  out.normalizes = false;
  if (!modules.is_array()) return invalid_argument("{} is of type {}; wanted a list", path, json_type_name(modules));
  for (const Json& module : modules) {
    std::string type;
    RETURN_IF_ERROR(json_read(module, "type", type).with_prefix(path));
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Normalize") out.normalizes = true;
    if (name == "Transformer" || name == "Pooling" || name == "Normalize") continue;
    return error(StatusCode::kUnsupported, "{} has the module {}; wanted Transformer, Pooling and Normalize alone",
                 path, name);
  }
  return ok_status();
}

// One of several is true; `pooling_mode: "lasttoken"` in newer files.
Status read_pooling(const Json& pooling, const std::string& path, PoolingConfig& out) {
  if (!pooling.is_object()) {
    return invalid_argument("{} is of type {}; wanted an object", path, json_type_name(pooling));
  }
  std::string mode;
  RETURN_IF_ERROR(json_read(pooling, "pooling_mode", mode).with_prefix(path));
  std::string found = mode.empty() ? "" : std::string(kPoolingMode) + (mode == "mean" ? "mean_tokens" : mode);
  for (const auto& [key, value] : pooling.items()) {
    if (!key.starts_with(kPoolingMode) || value != true || key == found) continue;
    found = found.empty() ? key : found + " and " + key;
  }
  out.mean = found == kMean;
  if (out.mean || found == kLastToken) return ok_status();
  return error(StatusCode::kUnsupported, "{} has {}; wanted {} or {}", path, found.empty() ? "no pooling mode" : found,
               kLastToken, kMean);
}

}  // namespace

Result<PoolingConfig> read_pooling_config(const std::string& model_dir) {
  const std::string modules_path = model_dir + "/modules.json", pooling_path = model_dir + "/1_Pooling/config.json";
  PoolingConfig out;
  ASSIGN_OR_RETURN(const bool found, file_exists(modules_path));
  if (!found) return out;
  out.given = true;
  ASSIGN_OR_RETURN(const Json modules, read_json_file(modules_path, kMaxFileBytes));
  RETURN_IF_ERROR(read_modules(modules, modules_path, out));
  ASSIGN_OR_RETURN(const Json pooling, read_json_file(pooling_path, kMaxFileBytes));
  RETURN_IF_ERROR(read_pooling(pooling, pooling_path, out));
  return out;
}

}  // namespace millrace
