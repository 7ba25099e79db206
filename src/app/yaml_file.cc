#include "app/yaml_file.h"

#include <yaml-cpp/yaml.h>

#include <fstream>

namespace millrace {

Result<std::string> read_yaml_file(const std::string& option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxYamlFileBytes + 1, '\0');
  if (!file || !(file.read(text.data(), static_cast<std::streamsize>(text.size())) || file.eof())) {
    return error(StatusCode::kNotFound, "{}: {} cannot be read; wanted a file in YAML", option, path);
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxYamlFileBytes) {
    return invalid_argument("{}: {} has more than {} bytes; wanted at most so many", option, path, kMaxYamlFileBytes);
  }
  return text;
}

std::vector<std::string> option_values(const YAML::Node& value) {
  if (value.IsScalar()) return {value.Scalar()};
  if (!value.IsSequence()) return {};
  std::vector<std::string> out;
  for (const YAML::Node& each : value) {
    if (!each.IsScalar()) return {};
    out.push_back(each.Scalar());
  }
  return out;
}

}  // namespace millrace
