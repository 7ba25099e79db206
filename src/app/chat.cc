// millrace chat: a conversation in the terminal with any OpenAI-compatible server.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/commands.h"
#include "app/interrupt_guard.h"
#include "app/output.h"
#include "app/server_answer.h"
#include "base/json.h"
#include "http/client.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

constexpr char kHelp[] =
    "  /help            this list\n"
    "  /new             forget the conversation and begin anew\n"
    "  /system TEXT     set the system message (and begin anew)\n"
    "  /temperature T   0 = always the likeliest word\n"
    "  /max N           longest answer in tokens\n"
    "  /retry           answer the last question again\n"
    "  /quit            leave (Ctrl-D does too); Ctrl-C stops an answer\n"
    "  a line that ends with \\ goes on in the next one\n";

constexpr int kInterruptedExit = 128 + SIGINT;  // as shells have it

// Whole, whatever Ctrl-C ends meanwhile.
void show(const std::string& text) {
  const InterruptsHeld held;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

class Conversation {
 public:
  explicit Conversation(const ChatOptions& options, http::Url url)
      : client_(std::move(url), options.api_key), options_(options) {
    reset();
  }

  Status connect() {
    ASSIGN_OR_RETURN(const http::ClientResponse response, client_.get("/v1/models"));
    ASSIGN_OR_RETURN(const Json body, checked(response));
    model_ = options_.model;
    if (!model_.empty()) return ok_status();
    const Json* data = json_find(body, "data");
    if (data && data->is_array() && !data->empty()) RETURN_IF_ERROR(json_read(data->front(), "id", model_));
    return ok_status();
  }
  const std::string& model() const { return model_; }

  void reset() {
    messages_ = Json::array();
    if (!options_.system.empty()) messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }

  // Streams the answer to the terminal and keeps it. An interrupted answer is kept as far as it came.
  Status ask(const std::string& question) {
    // A question that was refused waits for /retry alone.
    if (!messages_.empty() && messages_.back()["role"] == "user") messages_.erase(messages_.size() - 1);
    messages_.push_back({{"role", "user"}, {"content", question}});
    return answer();
  }

  Status retry() {
    if (!messages_.empty() && messages_.back()["role"] == "assistant") messages_.erase(messages_.size() - 1);
    if (messages_.empty() || messages_.back()["role"] != "user")
      return invalid_argument("there is nothing to answer yet");
    return answer();
  }

  ChatOptions& options() { return options_; }
  bool interrupted() const { return interrupted_; }  // the last answer

 private:
  Status answer() {
    Json request = {{"messages", messages_}, {"stream", true}, {"stream_options", {{"include_usage", true}}}};
    if (!model_.empty()) request["model"] = model_;
    if (options_.temperature >= 0) request["temperature"] = options_.temperature;
    if (options_.max_tokens > 0) request["max_tokens"] = options_.max_tokens;
    std::string text;
    Status failed;
    int64_t tokens = 0;
    http::SseReader reader;
    reasoning_ = false;
    const auto begin = std::chrono::steady_clock::now();
    std::optional<InterruptGuard> guard(client_);
    auto response = client_.post("/v1/chat/completions", request.dump(-1, ' ', false, Json::error_handler_t::replace),
                                 [&](std::string_view bytes) {
                                   return reader.push(bytes, [&](std::string_view event) {
                                     return take_event(event, text, tokens, failed);
                                   }) && !guard->interrupted();
                                 });
    show("\n");
    guard.reset();
    interrupted_ = take_interrupt();
    if (!response.ok() && !interrupted_) return response.status();
    if (interrupted_ && text.empty()) return ok_status();
    if (response.ok() && response->status != 200) return checked(*response).status();
    messages_.push_back({{"role", "assistant"}, {"content", text}});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (tokens > 0 && ::isatty(STDOUT_FILENO)) {
      show(fmt::format("\033[2m{} tokens, {:.1f} s, {:.0f} tokens/s\033[0m\n", tokens, seconds,
                       static_cast<double>(tokens) / seconds));
    }
    return failed;
  }

  // Reasoning is shown in a terminal alone, dim, and is no part of the conversation.
  void show_reasoning(const std::string& text) {
    if (text.empty() || ::isatty(STDOUT_FILENO) == 0) return;
    show("\033[2m" + printable(text) + "\033[0m");
    reasoning_ = true;
  }

  bool take_event(std::string_view event, std::string& text, int64_t& tokens, Status& failed) {
    if (event == "[DONE]") return true;
    auto chunk = parse_json(event);
    if (!chunk.ok() || !chunk->is_object()) return true;
    if (const Json* error = json_find(*chunk, "error")) {
      failed = Status(StatusCode::kUnavailable, printable(error->dump()));
      return false;
    }
    if (const Json* usage = json_find(*chunk, "usage")) {
      if (Status status = json_read(*usage, "completion_tokens", tokens); !status.ok()) tokens = 0;
    }
    const Json* choices = json_find(*chunk, "choices");
    if (!choices || choices->empty() || !choices->front().contains("delta")) return true;
    const Json& delta = choices->front()["delta"];
    std::string content, reasoning;
    if (Status status = json_read(delta, "content", content); !status.ok()) return true;
    if (json_read(delta, "reasoning_content", reasoning).ok()) show_reasoning(reasoning);
    if (content.empty()) return true;
    if (std::exchange(reasoning_, false)) show("\n\n");
    text += content;
    show(printable(content));
    return true;
  }

  http::Client client_;
  ChatOptions options_;
  std::string model_;
  Json messages_;
  bool interrupted_ = false;
  bool reasoning_ = false;  // it was the last that was shown
};

// Prompts for a line. False: Ctrl-C came instead. SIGINT is blocked but for the wait itself, so that none is missed.
bool wait_for_line(const char* prompt) {
  sigset_t interrupt, before;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::sigprocmask(SIG_BLOCK, &interrupt, &before);
  std::printf("%s", prompt);
  std::fflush(stdout);
  pollfd keyboard{STDIN_FILENO, POLLIN, 0};
  const bool typed = ::ppoll(&keyboard, 1, nullptr, &before) >= 0;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  // A Ctrl-C from before the line, which discards what was typed: not for the answer that the line asks for.
  (void)take_interrupt();
  return typed;
}

// One question, which may span lines. False at the end of input. Ctrl-C begins the question anew.
bool read_line(std::string& line) {
  line.clear();
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  for (;;) {
    if (terminal && !wait_for_line(line.empty() ? "> " : "... ")) {
      std::printf("\nCtrl-D or /quit leaves.\n");
      line.clear();
      continue;
    }
    std::string part;
    if (!std::getline(std::cin, part)) {
      if (terminal) std::printf("\n");
      return false;
    }
    const bool more = !part.empty() && part.back() == '\\';
    if (more) part.back() = '\n';
    line += part;
    if (!more) return true;
  }
}

// True: the line was a command. `quit`: whether to leave.
bool run_command(Conversation& conversation, const std::string& line, bool& quit) {
  if (!line.starts_with('/')) return false;
  const std::size_t space = line.find(' ');
  const std::string name = line.substr(0, space);
  const std::string argument = space == std::string::npos ? "" : line.substr(space + 1);
  char* end = nullptr;
  if (name == "/quit" || name == "/exit") {
    quit = true;
  } else if (name == "/new") {
    conversation.reset();
  } else if (name == "/system") {
    conversation.options().system = argument;
    conversation.reset();
  } else if (name == "/temperature") {
    const double value = std::strtod(argument.c_str(), &end);
    if (!argument.empty() && *end == '\0' && value >= 0 && value <= 2) {
      conversation.options().temperature = value;
    } else {
      std::printf("/temperature is '%s'; wanted a number in [0, 2]\n", argument.c_str());
    }
  } else if (name == "/max") {
    const long value = std::strtol(argument.c_str(), &end, 10);
    if (*end == '\0' && value >= 1 && value <= INT32_MAX) {
      conversation.options().max_tokens = static_cast<int>(value);
    } else {
      std::printf("/max is '%s'; wanted a number of tokens, 1 or more\n", argument.c_str());
    }
  } else if (name == "/retry") {
    if (Status status = conversation.retry(); !status.ok()) print_error(status);
  } else {
    std::printf("%s%s", name == "/help" ? "" : ("unknown command " + name + "\n").c_str(), kHelp);
  }
  return true;
}

}  // namespace

int run_chat(const ChatOptions& options) {
  auto url = http::parse_url(options.url);
  if (!url.ok()) return print_error(url.status()), kExitBadInput;
  Conversation conversation(options, *url);
  if (Status status = conversation.connect(); !status.ok()) return print_error(status), 1;
  catch_interrupts({SIGINT});
  if (options.prompt) {
    const Status status = conversation.ask(*options.prompt);
    if (!status.ok()) return print_error(status), 1;
    return conversation.interrupted() ? kInterruptedExit : 0;
  }
  if (::isatty(STDIN_FILENO))
    std::printf("Talking to %s. /help lists the commands.\n", printable(conversation.model()).c_str());
  std::string line;
  bool failed = false;
  for (bool quit = false; !quit && read_line(line);) {
    if (line.empty() || run_command(conversation, line, quit)) continue;
    Status status = conversation.ask(line);
    if (!status.ok()) print_error(status);
    failed |= !status.ok();
  }
  return failed && !::isatty(STDIN_FILENO) ? 1 : 0;
}

}  // namespace millrace
