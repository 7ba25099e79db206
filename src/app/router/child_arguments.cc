#include "app/router/child_arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>

#include "app/config_file.h"
#include "app/options.h"

namespace millrace {
namespace {

// Of the router alone.
constexpr std::array<std::string_view, 28> kRouterOptions = {"help",
                                                             "config",
                                                             "model",
                                                             "host",
                                                             "port",
                                                             "uds",
                                                             "no-tcp",
                                                             "parent",
                                                             "api-key",
                                                             "admin-api-key",
                                                             "cors-origin",
                                                             "allowed-host",
                                                             "public-models",
                                                             "no-web",
                                                             "admin-api-key-file",
                                                             "models-dir",
                                                             "models-file",
                                                             "allow-pull",
                                                             "name",
                                                             "model-alias",
                                                             "pin-model",
                                                             "model-ttl-s",
                                                             "models-max",
                                                             "admin-without-key",
                                                             "revision",
                                                             "models-memory-gib",
                                                             "any-model-name",
                                                             "require-model"};

struct Unserved {
  std::string_view option;
  const char* why;
};
constexpr std::array kUnserved = {
    Unserved{"pipeline", "a pipeline's file is of one model"},
    Unserved{"listen", "stages of other hosts join one model"},
    Unserved{"key-file", "stages of other hosts join one model"},
    Unserved{"discovery", "stages of other hosts join one model"},
    Unserved{"discovery-user", "stages of other hosts join one model"},
    Unserved{"discovery-user-file", "stages of other hosts join one model"},
    Unserved{"served-model-name", "wanted --model NAME=PATH and --model-alias ALIAS=NAME"},
    Unserved{"any-model-name", "each request names its model"},
    Unserved{"revision", "wanted one model"},
    Unserved{"kv-transfer-listen", "KV pages are of one model"},
    Unserved{"kv-transfer-key-file", "KV pages are of one model"},
    Unserved{"kv-events", "KV events are of one model"},
    Unserved{"weights-snapshot-dir", "a trainer's weights are of one model"},
    Unserved{"start-weights", "a trainer's weights are of one model"},
    Unserved{"response-store-file", "each model has a process, and a file is of one"},
};

// Where one of all models has no use for it, the others may have.
bool is_of_media(std::string_view name) { return name.starts_with("media-") || name.starts_with("video-"); }

bool is_of_router(std::string_view name) {
  return std::find(kRouterOptions.begin(), kRouterOptions.end(), name) != kRouterOptions.end();
}

}  // namespace

std::vector<std::string> child_arguments(const CLI::App& command) {
  std::vector<std::string> out;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty() || is_of_router(option->get_lnames().front())) continue;
    const std::string name = option->get_lnames().front();
    for (const std::string& value : option->results()) {
      // A flag that turns something off has the value of what it turns off.
      const bool negated = option->get_expected_max() == 0 && option->get_flag_value(name, "true") == "false";
      out.push_back("--" + name + "=" + (negated ? (value == "false" ? "true" : "false") : value));
    }
  }
  return out;
}

std::vector<std::string> options_of_one_model() {
  CLI::App serve("", "serve");
  ServeOptions options;
  add_serve_options(serve, options);
  std::vector<std::string> out = option_names(serve);
  std::erase_if(out, [](const std::string& name) {
    const bool unserved =
        std::any_of(kUnserved.begin(), kUnserved.end(), [&](const Unserved& each) { return each.option == name; });
    return unserved || is_of_router(name);
  });
  return out;
}

Status check_model_arguments(std::vector<std::string> arguments) {
  CLI::App serve("", "serve");
  ServeOptions options;
  add_serve_options(serve, options);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    serve.parse(std::move(arguments));
  } catch (const CLI::ParseError& failure) {
    return invalid_argument("{}", failure.what());
  }
  return ok_status();
}

std::vector<std::string> arguments_of_model(std::vector<std::string> general, const std::vector<std::string>& special) {
  const auto option_of = [](const std::string& argument) { return argument.substr(0, argument.find('=')); };
  std::erase_if(general, [&](const std::string& argument) {
    return std::any_of(special.begin(), special.end(),
                       [&](const std::string& each) { return option_of(each) == option_of(argument); });
  });
  std::vector<std::string> names;
  for (const std::string& argument : general) {
    const std::string name = option_of(argument).substr(2);
    if (is_of_media(name) && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  for (const std::string& name : names) general.push_back("--if-of-use=" + name);
  general.insert(general.end(), special.begin(), special.end());
  return general;
}

Status check_router_options(const std::vector<std::string>& given) {
  for (const Unserved& each : kUnserved) {
    if (std::find(given.begin(), given.end(), each.option) == given.end()) continue;
    return invalid_argument("--{} has no use with several models: {}", each.option, each.why);
  }
  return ok_status();
}

}  // namespace millrace
