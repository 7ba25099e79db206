#include "app/router/models_file.h"

#include <sys/stat.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "app/router/child_arguments.h"
#include "app/yaml_file.h"
#include "base/nearest.h"
#include "hub/reference.h"

namespace millrace {
namespace {

constexpr int kMaxTtlS = 1 << 30;

class ModelsReader {
 public:
  ModelsReader(std::string path, std::vector<ServedModel>& models) : path_(std::move(path)), models_(models) {}

  Status read(const YAML::Node& root) {
    if (!root.IsMap() && !root.IsNull()) return wrong(root, "it is no map; wanted names of models");
    std::set<std::string> seen;  // the parser takes a key twice
    for (const auto& pair : root) {
      if (!pair.first.IsScalar() || pair.first.Scalar().empty()) return wrong(pair.first, "wanted a model's name");
      if (!seen.insert(pair.first.Scalar()).second) {
        return wrong(pair.first, fmt::format("'{}' is named twice; wanted each model once", pair.first.Scalar()));
      }
      if (!pair.second.IsMap()) return wrong(pair.first, "this model is no map; wanted lines such as 'kv-gib: 2'");
      RETURN_IF_ERROR(read_model(pair.first, pair.second));
    }
    return ok_status();
  }

 private:
  Status wrong(const YAML::Node& at, const std::string& why) const {
    return invalid_argument("{}:{}: {}", path_, at.Mark().line + 1, why);
  }

  Status read_model(const YAML::Node& name, const YAML::Node& keys) {
    const auto known = std::find_if(models_.begin(), models_.end(),
                                    [&](const ServedModel& model) { return model.name == name.Scalar(); });
    ServedModel model = known == models_.end() ? ServedModel{.name = name.Scalar()} : *known;
    std::set<std::string> seen;
    for (const auto& pair : keys) {
      if (pair.first.IsScalar() && !seen.insert(pair.first.Scalar()).second) {
        return wrong(pair.first, fmt::format("'{}' stands twice; wanted it once", pair.first.Scalar()));
      }
      RETURN_IF_ERROR(read_key(pair.first, pair.second, model));
    }
    if (model.path.empty()) {
      std::vector<std::string_view> names;
      for (const ServedModel& each : models_) names.push_back(each.name);
      return wrong(name, fmt::format("there is no model '{}'{}; wanted its `model`: a path or ORG/NAME of a hub",
                                     model.name, suggestion(model.name, names)));
    }
    if (const Status fits = check_model_arguments(model.arguments); !fits.ok()) return wrong(name, fits.message());
    if (known == models_.end()) {
      models_.push_back(std::move(model));
    } else {
      *known = std::move(model);
    }
    return ok_status();
  }

  Status read_key(const YAML::Node& key, const YAML::Node& value, ServedModel& model) {
    if (!key.IsScalar()) return wrong(key, "the key is no text; wanted an option's name");
    const std::string& name = key.Scalar();
    std::vector<std::string> values;
    RETURN_IF_ERROR(read_values(key, value, values));
    if (name == "model") return read_path(value, model);
    if (name == "alias") return model.aliases.insert(model.aliases.end(), values.begin(), values.end()), ok_status();
    if (name == "pin") {
      if (values.front() != "true" && values.front() != "false") return wrong(key, "pin: wanted true or false");
      return model.pinned = values.front() == "true", ok_status();
    }
    if (name == "ttl-s") {
      int seconds = -1;
      if (!YAML::convert<int>::decode(value, seconds) || seconds < 0 || seconds > kMaxTtlS) {
        return wrong(key, fmt::format("ttl-s is '{}'; wanted seconds, 0 to {}", values.front(), kMaxTtlS));
      }
      return model.ttl_s = seconds, ok_status();
    }
    std::vector<std::string> options = options_of_one_model();
    if (std::find(options.begin(), options.end(), name) == options.end()) {
      options.insert(options.end(), {"model", "alias", "pin", "ttl-s"});
      const std::vector<std::string_view> known(options.begin(), options.end());
      return wrong(key, fmt::format("'{}' is no option of one model{}", name, suggestion(name, known)));
    }
    for (const std::string& each : values) model.arguments.push_back("--" + name + "=" + each);
    return ok_status();
  }

  Status read_path(const YAML::Node& value, ServedModel& model) const {
    struct stat info {};
    model.path = value.Scalar();
    if (::stat(model.path.c_str(), &info) == 0 || hub::parse_reference(model.path).ok()) return ok_status();
    return wrong(value,
                 fmt::format("{} is not available; wanted a folder, a GGUF file or ORG/NAME of a hub", model.path));
  }

  Status read_values(const YAML::Node& key, const YAML::Node& value, std::vector<std::string>& out) const {
    out = option_values(value);
    if (!out.empty()) return ok_status();
    return wrong(key, fmt::format("'{}' has no value; wanted one, or a list of some", key.Scalar()));
  }

  const std::string path_;
  std::vector<ServedModel>& models_;
};

}  // namespace

Status add_models_file(const std::string& path, std::vector<ServedModel>& models) {
  ASSIGN_OR_RETURN(const std::string text, read_yaml_file("--models-file", path));
  try {
    return ModelsReader(path, models).read(YAML::Load(text));
  } catch (const YAML::Exception& failure) {
    return invalid_argument("{}:{}: {}", path, failure.mark.line + 1, failure.msg);
  }
}

}  // namespace millrace
