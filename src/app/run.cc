#include "app/run.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/model_command_line.h"
#include "app/output.h"
#include "app/server_process.h"
#include "app/signals.h"
#include "base/log.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

constexpr int kSignalExit = 128;  // and the signal's number, as shells have it

// A pipe or a file on standard input is a part of the prompt, as with other programs of this kind; a terminal is not,
// and neither is what a service or a script leaves open there.
bool reads_input(bool has_words) {
  struct stat info {};
  if (::isatty(STDIN_FILENO) != 0 || ::fstat(STDIN_FILENO, &info) != 0) return false;
  return !has_words || S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode);
}

Result<std::string> read_input() {
  std::string text;
  char buffer[1 << 16];
  for (std::size_t bytes = 0; (bytes = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, bytes);
    if (text.size() > kMaxPromptBytes) {
      return error(StatusCode::kTooLarge, "standard input has more than {} bytes; wanted a prompt of at most so many",
                   kMaxPromptBytes);
    }
  }
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// nullopt: a chat.
Result<std::optional<std::string>> prompt_of(const RunOptions& options) {
  std::string words = CLI::detail::join(options.prompt, " ");
  if (!reads_input(!words.empty())) return words.empty() ? std::optional<std::string>() : std::optional(words);
  ASSIGN_OR_RETURN(std::string text, read_input());
  if (!text.empty() && !words.empty()) text += "\n\n";
  text += words;
  if (text.empty()) return invalid_argument("standard input is empty; wanted a prompt there, or as an argument");
  return std::optional(std::move(text));
}

std::vector<std::string> server_arguments(const RunOptions& options) {
  std::vector<std::string> out = {"--no-web", "--no-request-log", "--drain-timeout-s", "0"};
  if (!options.revision.empty()) out.insert(out.end(), {"--revision", options.revision});
  add_model_arguments(options.model, out);
  return out;
}

// nullopt: it is ready. Else the exit code.
std::optional<int> await_ready(ServerProcess& server, const sigset_t& signals) {
  for (;;) {
    const ServerProcess::State state = server.poll();
    if (state == ServerProcess::State::kReady) return std::nullopt;
    if (state == ServerProcess::State::kEnded) {
      // It has printed why, but for a signal.
      const int code = server.exit_code();
      if (code >= kSignalExit) print_error(error(StatusCode::kInternal, "the server stopped: {}", server.how()));
      return code == 0 ? 1 : code;
    }
    const timespec tick{0, kSignalTickMs * 1'000'000};
    const int signal = ::sigtimedwait(&signals, nullptr, &tick);
    if (signal > 0) return kSignalExit + signal;
  }
}

// Ends the process at SIGTERM and SIGHUP, whatever the chat waits for. The server is gone when the thread that started
// it is, and removes the folder.
void end_at_signals(sigset_t signals) {
  sigdelset(&signals, SIGINT);
  std::thread([signals] {
    int signal = 0;
    if (::sigwait(&signals, &signal) == 0) ::_exit(kSignalExit + signal);
  }).detach();
}

int with_private_server(const RunOptions& options, ChatOptions chat) {
  const sigset_t signals = block_stop_signals();
  auto server = ServerProcess::start({.arguments = server_arguments(options)});
  if (!server.ok()) return print_error(server.status()), 1;
  if (const std::optional<int> code = await_ready(**server, signals)) return *code;
  end_at_signals(signals);
  sigset_t interrupt;  // for the chat
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  if (stop_signal_came(interrupt)) return kSignalExit + SIGINT;  // it came at the end of the load
  ::pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
  chat.url = (*server)->url();
  return run_chat(chat);
}

// What shapes a server has no use for one that runs.
Status check_unused(const RunOptions& options) {
  std::vector<std::string> of_servers = model_option_names();
  of_servers.emplace_back("revision");
  for (const std::string& name : options.given) {
    if (name == "model" || std::find(of_servers.begin(), of_servers.end(), name) == of_servers.end()) continue;
    return invalid_argument("--{} (or {}) has no use with --url: that server runs already; wanted one of them", name,
                            variable_of(name));
  }
  return ok_status();
}

}  // namespace

void add_run_options(CLI::App& command, RunOptions& o) {
  o.chat.url.clear();
  o.model.log_level = "warning";
  add_chat_options(command, o.chat);
  add_model_options(command, o.model);
  command
      .add_option(
          "name", o.model.model,
          "The model: a folder, a GGUF file, or ORG/NAME[:QUANT] of a hub, which is pulled where the cache does "
          "not have it; with --url: its name there")
      ->excludes("--model");
  command.add_option("prompt", o.prompt,
                     "Answer this and end; default: a chat, or what a pipe on standard input brings");
  command.add_option("--revision", o.revision, "Branch, tag or commit of a model of a hub; default: main")
      ->group("Model and memory");
}

int run_run(const RunOptions& options) {
  log_init("run", LogLevel::kWarning);
  if (options.chat.url.empty() && options.model.model.empty()) {
    print_error(invalid_argument("the model is missing; wanted a folder, a GGUF file, or ORG/NAME[:QUANT] of a hub"));
    return kExitBadInput;
  }
  auto prompt = prompt_of(options);
  if (!prompt.ok()) return print_error(prompt.status()), kExitBadInput;
  ChatOptions chat = options.chat;
  chat.prompt = std::move(prompt).value();
  if (chat.url.empty()) return with_private_server(options, std::move(chat));
  if (Status status = check_unused(options); !status.ok()) return print_error(status), kExitBadInput;
  chat.model = options.model.model;
  return run_chat(chat);
}

}  // namespace millrace
