#include "app/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string_view>
#include <vector>

#include "app/config_file.h"
#include "app/output.h"
#include "base/nearest.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

CLI::App& innermost(CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  return given.empty() ? app : innermost(*given.front());
}

// "millrace bench serve"
std::string full_name(const CLI::App& command) {
  return command.get_parent() == nullptr ? "millrace" : full_name(*command.get_parent()) + " " + command.get_name();
}

std::string suggestion_of(const std::string& name, const std::vector<std::string>& known) {
  const std::vector<std::string_view> views(known.begin(), known.end());
  return suggestion(name, views);
}

// What was not understood, and what was probably meant.
std::string unknown_text(CLI::App& app, const std::vector<std::string>& extras) {
  const CLI::App& command = innermost(app);
  const auto option =
      std::find_if(extras.begin(), extras.end(), [](const auto& text) { return text.starts_with('-'); });
  if (option != extras.end()) {
    const std::string name = option->substr(0, option->find('='));
    std::vector<std::string> known;
    for (const std::string& each : option_names(command)) known.push_back("--" + each);
    if (&command == &app) return "the option '" + name + "' is unknown here; wanted a command before it";
    return full_name(command) + " has no option '" + name + "'" + suggestion_of(name, known);
  }
  std::vector<std::string> commands;
  for (const CLI::App* each : command.get_subcommands({})) {
    if (!each->get_group().empty()) commands.push_back(each->get_name());
  }
  const std::string& first = extras.front();
  if (commands.empty()) return full_name(command) + " takes no further argument; seen '" + first + "'";
  return full_name(command) + " has no command '" + first + "'" + suggestion_of(first, commands);
}

int report(CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  const std::vector<std::string> extras = app.remaining(true);
  // Of two errors the word that was not understood is the one that helps.
  const std::string text = extras.empty() ? error.what() : unknown_text(app, extras);
  std::fprintf(stderr, "millrace: error: %s\n%s --help lists what there is.\n", text.c_str(),
               full_name(innermost(app)).c_str());
  return kExitBadInput;
}

// A later source may bring what is missing.
bool may_be_met(const CLI::ParseError& error) {
  return dynamic_cast<const CLI::RequiredError*>(&error) != nullptr ||
         dynamic_cast<const CLI::RequiresError*>(&error) != nullptr;
}

// The values of one source for the options of one command.
class Source {
 public:
  explicit Source(CLI::App& command) {
    for (CLI::Option* option : command.get_options({})) {
      options_.push_back(option);
      if (option->count() > 0) given_.insert(option);
    }
  }

  // Throws CLI::ParseError where the option does not take the values. False: it has a value of an earlier source, or
  // excludes one that has.
  bool set(CLI::Option* option, const std::string& name, const std::vector<std::string>& values) {
    const std::set<CLI::Option*> excluded = option->get_excludes();
    const bool displaced = given_.contains(option) || std::any_of(excluded.begin(), excluded.end(),
                                                                  [this](auto* each) { return given_.contains(each); });
    if (displaced || option->count() > 0) return false;
    for (const std::string& value : values) {
      option->add_result(option->get_expected_min() == 0 ? option->get_flag_value(name, value) : value);
    }
    option->run_callback();
    return true;
  }

  CLI::Option* find(const std::string& name) const {
    for (CLI::Option* option : options_) {
      const std::vector<std::string>& names = option->get_lnames();
      if (!option->get_group().empty() && std::find(names.begin(), names.end(), name) != names.end()) return option;
    }
    return nullptr;
  }

  // In declaration order.
  const std::vector<CLI::Option*>& options() const { return options_; }

 private:
  std::vector<CLI::Option*> options_;
  std::set<CLI::Option*> given_;  // by earlier sources
};

bool is_general(const CLI::Option& option) {
  const std::vector<std::string>& names = option.get_lnames();
  return option.get_group().empty() || names.empty() || names.front() == "help" || names.front() == "version";
}

Status bad_value(const std::string& where, const std::string& value, const CLI::ParseError& error) {
  std::string why = error.what();
  // CLI11 begins with the option's name.
  if (const std::size_t colon = why.find(": "); why.starts_with("--") && colon != std::string::npos)
    why.erase(0, colon + 2);
  return invalid_argument("{} is '{}': {}", where, value.substr(0, 64), why);
}

Status read_environment(CLI::App& command) {
  Source source(command);
  for (CLI::Option* option : source.options()) {
    if (is_general(*option)) continue;
    for (const std::string& name : option->get_lnames()) {
      const std::string variable = variable_of(name);
      const char* const text = std::getenv(variable.c_str());
      if (text == nullptr || *text == '\0') continue;
      const std::string value = text;
      try {
        source.set(option, name, {value});
      } catch (const CLI::ParseError& error) {
        return bad_value(variable, value, error);
      }
      ::unsetenv(variable.c_str());
    }
  }
  return ok_status();
}

Status read_file(const CLI::App& app, CLI::App& command) {
  const CLI::Option* const config = command.get_option_no_throw("--config");
  if (config == nullptr || config->count() == 0) return ok_status();
  const std::string path = config->results().front();
  ASSIGN_OR_RETURN(const std::vector<ConfigEntry> entries, read_config(path, app, command));
  Source source(command);
  for (const ConfigEntry& entry : entries) {
    CLI::Option* const option = source.find(entry.name);
    try {
      if (option != nullptr) source.set(option, entry.name, entry.values);
    } catch (const CLI::ParseError& error) {
      return bad_value(fmt::format("{}:{}: '{}'", path, entry.line, entry.name), entry.values.front(), error);
    }
  }
  return ok_status();
}

// As CLI11 does it after the command line, now with all sources.
void check_requirements(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_required() && option->count() == 0) throw CLI::RequiredError(option->get_name());
    if (option->count() == 0) continue;
    for (const CLI::Option* needed : option->get_needs()) {
      if (needed->count() == 0) throw CLI::RequiresError(option->get_name(), needed->get_name());
    }
    for (const CLI::Option* excluded : option->get_excludes()) {
      if (excluded->count() > 0) throw CLI::ExcludesError(option->get_name(), excluded->get_name());
    }
  }
}

void add_config_to(CLI::App& command) {
  if (command.get_group().empty()) return;
  const std::vector<CLI::App*> inner = command.get_subcommands({});
  for (CLI::App* each : inner) add_config_to(*each);
  if (!inner.empty()) return;
  command
      .add_option("--config", "YAML file with options of this command, without the dashes: 'threads: 8' (docs/cli.md)")
      ->type_name("TEXT");
}

}  // namespace

void add_config_options(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) add_config_to(*command);
}

std::string variable_of(const std::string& option) {
  std::string out = "MILLRACE_" + option;
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
  return out;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  if (argc <= 1) {
    std::cout << app.help();
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (!may_be_met(error) || &innermost(app) == &app || !app.remaining(true).empty()) return report(app, error);
  }
  CLI::App& command = innermost(app);
  const CLI::Option* const parent = command.get_option_no_throw("--parent");
  const bool is_child = parent != nullptr && parent->count() > 0;  // it has everything on its command line
  if (!command.get_group().empty() && !is_child) {
    Status status = read_environment(command);
    if (status.ok()) status = read_file(app, command);
    if (!status.ok()) return print_error(status), kExitBadInput;
  }
  try {
    check_requirements(command);
    if (command.get_require_subcommand_min() > 0) throw CLI::RequiredError("A command of " + full_name(command));
  } catch (const CLI::ParseError& error) {
    return report(app, error);
  }
  return std::nullopt;
}

}  // namespace millrace
