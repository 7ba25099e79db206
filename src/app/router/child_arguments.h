// The options that the router passes to the server of each model: those that a person gave, but for the ones of the
// router itself (where it listens, keys, names). Thread safety: one thread, at the start.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace CLI {
class App;
}

namespace millrace {

// Of the command `serve`, after it was parsed: as arguments.
std::vector<std::string> child_arguments(const CLI::App& command);

// The options that one model of several may have for itself, without dashes.
std::vector<std::string> options_of_one_model();
// Whether `serve` takes them: "--kv-gib=2". kInvalidArgument names what it does not take.
Status check_model_arguments(std::vector<std::string> arguments);
// Those of all models, but for the options that one has for itself; then these. Options of pictures, audio and videos
// that are of all models are no error where this one takes none.
std::vector<std::string> arguments_of_model(std::vector<std::string> general, const std::vector<std::string>& special);

// kInvalidArgument names an option that has no use with several models, or only with one.
Status check_router_options(const std::vector<std::string>& given);

}  // namespace millrace
