#include "app/config_file.h"

#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <string_view>

#include "app/yaml_file.h"
#include "base/nearest.h"

namespace millrace {
namespace {

class ConfigReader {
 public:
  ConfigReader(std::string path, const CLI::App& command) : path_(std::move(path)), command_(command) {}

  // A map of `at`: its options, and sections of the commands below it. At the top of a file they are those of the
  // command.
  Status read(const YAML::Node& node, const CLI::App& at, bool top) {
    std::set<std::string> seen;
    const CLI::App& options = top ? command_ : at;
    for (const auto& pair : node) {
      const int line = pair.first.Mark().line + 1;
      if (!pair.first.IsScalar())
        return invalid_argument("{}:{}: the key is no text; wanted an option's name", path_, line);
      const std::string key = pair.first.Scalar();
      if (!seen.insert(key).second)
        return invalid_argument("{}:{}: '{}' is there twice; wanted it once", path_, line, key);
      if (const CLI::App* section = find_command(at, key); section != nullptr && pair.second.IsMap()) {
        RETURN_IF_ERROR(read(pair.second, *section, false));
        continue;
      }
      RETURN_IF_ERROR(check_name(key, line, options, at));
      if (&options != &command_) continue;
      ConfigEntry entry{.name = key, .values = {}, .line = line};
      RETURN_IF_ERROR(read_values(pair.second, entry));
      (top ? general_ : special_).push_back(std::move(entry));
    }
    return ok_status();
  }

  std::vector<ConfigEntry> entries() {
    special_.insert(special_.end(), general_.begin(), general_.end());
    return std::move(special_);
  }

 private:
  static const CLI::App* find_command(const CLI::App& at, const std::string& name) {
    for (const CLI::App* command : at.get_subcommands({})) {
      if (command->get_name() == name) return command;
    }
    return nullptr;
  }

  Status check_name(const std::string& key, int line, const CLI::App& options, const CLI::App& at) const {
    std::vector<std::string> known = option_names(options);
    std::erase(known, "config");
    if (std::find(known.begin(), known.end(), key) != known.end()) return ok_status();
    for (const CLI::App* command : at.get_subcommands({})) {
      if (!command->get_group().empty()) known.push_back(command->get_name());
    }
    const std::vector<std::string_view> views(known.begin(), known.end());
    return invalid_argument("{}:{}: '{}' is no option of millrace {}{}", path_, line, key.substr(0, 64),
                            options.get_name(), suggestion(key, views));
  }

  Status read_values(const YAML::Node& value, ConfigEntry& out) const {
    out.values = option_values(value);
    if (!out.values.empty()) return ok_status();
    return invalid_argument("{}:{}: '{}' has no value; wanted one, or a list of some", path_, out.line, out.name);
  }

  const std::string path_;
  const CLI::App& command_;
  std::vector<ConfigEntry> special_, general_;
};

}  // namespace

Result<std::vector<ConfigEntry>> read_config(const std::string& path, const CLI::App& app, const CLI::App& command) {
  ASSIGN_OR_RETURN(const std::string text, read_yaml_file("--config", path));
  ConfigReader reader(path, command);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      return invalid_argument("{}:{}: a second document begins; wanted one", path, documents[1].Mark().line + 1);
    }
    const YAML::Node root = documents.empty() ? YAML::Node() : documents[0];
    if (root.IsNull()) return std::vector<ConfigEntry>();
    if (!root.IsMap()) return invalid_argument("{}:1: it is no map; wanted lines such as 'threads: 8'", path);
    RETURN_IF_ERROR(reader.read(root, app, true));
  } catch (const YAML::Exception& failure) {
    return invalid_argument("{}:{}: {}", path, failure.mark.line + 1, failure.msg);
  }
  return reader.entries();
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;  // not for people
    names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  return names;
}

}  // namespace millrace
