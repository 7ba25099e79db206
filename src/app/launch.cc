#include "app/launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "app/launch_clients.h"
#include "app/output.h"
#include "app/server_answer.h"
#include "base/argv.h"
#include "base/json.h"
#include "base/log.h"
#include "http/client.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

constexpr int64_t kUnknownContext = 32768;  // of a server that names none

// The model that the client is to use, as the server describes it.
Status ask_server(const LaunchOptions& options, const http::Url& url, LaunchTarget& out) {
  ASSIGN_OR_RETURN(const http::ClientResponse response, http::Client(url, options.api_key).get("/v1/models"));
  ASSIGN_OR_RETURN(const Json body, checked(response));
  const Json* data = json_find(body, "data");
  if (data == nullptr || !data->is_array() || data->empty()) {
    return error(StatusCode::kNotFound, "the server at {} lists no model", options.url);
  }
  std::string names;
  for (const Json& model : *data) {
    std::string id;
    RETURN_IF_ERROR(json_read(model, "id", id));
    names += (names.empty() ? "'" : ", '") + id + "'";
    if (!options.model.empty() && id != options.model) continue;
    out.model = id;
    out.context = kUnknownContext;
    return json_read(model, "max_model_len", out.context);
  }
  return error(StatusCode::kNotFound, "the server at {} has no model '{}'; wanted {}", options.url, options.model,
               printable(names));
}

// "~/.config/millrace/launch/codex"
Result<std::string> folder_of(const std::string& client) {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  const char* const home = std::getenv("HOME");
  if (config != nullptr && *config == '/') return fmt::format("{}/millrace/launch/{}", config, client);
  if (home == nullptr || *home != '/') {
    return invalid_argument("HOME is '{}'; wanted a folder, in which the settings lie", home ? home : "");
  }
  return fmt::format("{}/.config/millrace/launch/{}", home, client);
}

bool is_installed(const std::string& program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code failed;
    const std::string file = (folder.empty() ? "." : folder) + "/" + program;
    if (std::filesystem::is_regular_file(file, failed) && ::access(file.c_str(), X_OK) == 0) return true;
  }
  return false;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

// For this user alone: there may be a key in it. What stood there is kept beside it.
Status write_settings(const LaunchPlan& plan) {
  namespace fs = std::filesystem;
  if (plan.file.empty()) return ok_status();
  std::error_code failed;
  fs::create_directories(fs::path(plan.file).parent_path(), failed);
  fs::permissions(fs::path(plan.file).parent_path(), fs::perms::owner_all, failed);
  if (fs::exists(plan.file, failed)) {
    if (text_of(plan.file) == plan.text) return ok_status();
    fs::rename(plan.file, plan.file + ".old", failed);
    std::fprintf(stderr, "millrace: %s had other settings; they are in %s.old now\n", plan.file.c_str(),
                 plan.file.c_str());
  }
  const int file = ::open(plan.file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written =
      file >= 0 && ::write(file, plan.text.data(), plan.text.size()) == static_cast<ssize_t>(plan.text.size());
  const int why = errno;
  if (file >= 0) ::close(file);
  if (!written) return error(StatusCode::kUnavailable, "{} cannot be written: {}", plan.file, std::strerror(why));
  std::fprintf(stderr, "millrace: wrote %s\n", plan.file.c_str());
  return ok_status();
}

// As a shell reads it.
std::string shell_word(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_@%+=:,./-") == std::string::npos;
  return plain ? text : "'" + CLI::detail::find_and_replace(text, "'", "'\\''") + "'";
}

void print_plan(const LaunchPlan& plan, const std::vector<std::string>& arguments) {
  if (!plan.file.empty()) std::printf("# %s\n%s\n", plan.file.c_str(), plan.text.c_str());
  for (const auto& [name, value] : plan.env) std::printf("export %s=%s\n", name.c_str(), shell_word(value).c_str());
  std::printf("%s", plan.program.c_str());
  for (const std::string& argument : arguments) std::printf(" %s", shell_word(argument).c_str());
  std::printf("\n");
}

// Returns where it cannot.
Status start(const LaunchPlan& plan, std::vector<std::string> arguments) {
  for (const auto& [name, value] : plan.env) ::setenv(name.c_str(), value.c_str(), 1);
  arguments.insert(arguments.begin(), plan.program);
  ::execvp(plan.program.c_str(), argv_of(arguments).data());
  return error(StatusCode::kUnavailable, "{} cannot be started: {}", plan.program, std::strerror(errno));
}

Status launch(const LaunchOptions& options) {
  ASSIGN_OR_RETURN(const http::Url url, http::parse_url(options.url));
  if (!url.unix_socket.empty())
    return invalid_argument("--url is {}; wanted http://HOST:PORT: clients know no other", options.url);
  LaunchTarget target{.api_key = options.api_key};
  const bool v6 = url.host.find(':') != std::string::npos;
  target.url = v6 ? fmt::format("http://[{}]:{}", url.host, url.port) : fmt::format("http://{}:{}", url.host, url.port);
  RETURN_IF_ERROR(ask_server(options, url, target));
  ASSIGN_OR_RETURN(target.folder, folder_of(options.client));
  const std::optional<LaunchPlan> plan = launch_plan(options.client, target);
  if (!plan) return invalid_argument("the client is '{}'; wanted a known one", options.client);
  std::vector<std::string> arguments = plan->arguments;
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  if (options.print) {
    print_plan(*plan, arguments);
    return ok_status();
  }
  if (!is_installed(plan->program)) {
    return error(StatusCode::kUnavailable, "{} is not installed: PATH has no program '{}'. Install it with: {}",
                 options.client, plan->program, plan->install);
  }
  RETURN_IF_ERROR(write_settings(*plan));
  return start(*plan, std::move(arguments));
}

}  // namespace

void add_launch_options(CLI::App& command, LaunchOptions& o) {
  command.add_option("client", o.client, "Which one")->required()->check(CLI::IsMember(launch_clients()));
  command.add_option("arguments", o.arguments, "Arguments for it, after --");
  command.add_option("--url,-u", o.url, "Server to use")->capture_default_str();
  command.add_option("--api-key", o.api_key, "Key of the server");
  command.add_option("--model-name,-m", o.model, "Model to use, as the server names it; default: its first");
  command.add_flag("--print", o.print, "Show the settings and the command; write and start nothing");
}

int run_launch(const LaunchOptions& options) {
  log_init("launch", LogLevel::kWarning);
  const Status status = launch(options);
  return status.ok() ? 0 : (print_error(status), exit_code_of(status));
}

}  // namespace millrace
