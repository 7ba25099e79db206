// millrace top: what a running server does, redrawn in place twice a second.
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/interrupt_guard.h"
#include "app/output.h"
#include "app/server_answer.h"
#include "app/top_frame.h"
#include "http/client.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

constexpr int kEventsOfOnce = 2;  // a rate needs two
constexpr int kNoTerminalColumns = 120;

TopSize size_of_terminal(bool terminal) {
  winsize window{};
  if (!terminal || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) {
    return {.columns = kNoTerminalColumns, .rows = 0, .color = terminal};
  }
  return {.columns = window.ws_col, .rows = window.ws_row, .color = true};
}

// The terminal while frames are drawn in place: another screen, no cursor, and lines that are cut and not wrapped.
class Screen {
 public:
  explicit Screen(bool in_place) : in_place_(in_place) { write(in_place_ ? "\033[?1049h\033[?25l\033[?7l" : ""); }
  ~Screen() { write(in_place_ ? "\033[?7h\033[?25h\033[?1049l" : ""); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void show(const std::string& frame) {
    if (!in_place_) return write(frame);
    std::string out = "\033[H";
    for (std::size_t at = 0, end = 0; (end = frame.find('\n', at)) != std::string::npos; at = end + 1) {
      out.append(frame, at, end - at).append("\033[K");
      if (end + 1 < frame.size()) out += "\r\n";
    }
    write(out + "\033[J");
  }

 private:
  static void write(const std::string& text) {
    const InterruptsHeld held;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  const bool in_place_;
};

// Shows events until the server ends the stream, Ctrl-C comes, or once is enough.
Status follow(http::Client& client, const TopOptions& options) {
  const bool once = options.once;
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  std::optional<Screen> screen;  // not before there is something to show: an error stays in view
  TopFrame frame;
  http::SseReader reader;
  int events = 0;
  Status failed;
  const InterruptGuard guard(client);
  const auto take = [&](std::string_view text) {
    auto event = parse_json(text);
    if (!event.ok()) return failed = event.status().with_prefix("an event of the server"), false;
    frame.add(*event);
    if (++events < kEventsOfOnce && once) return true;
    if (!screen) screen.emplace(terminal && !once);
    screen->show(frame.render(size_of_terminal(terminal)) + (terminal || once ? "" : "\n"));
    return !once && !guard.interrupted();
  };
  const std::string path = "/live/events" + (options.model.empty() ? "" : "?model=" + http::escaped(options.model));
  auto response = client.get(path, [&](std::string_view chunk) { return reader.push(chunk, take); });
  screen.reset();
  if (guard.interrupted() || (once && events >= kEventsOfOnce)) return ok_status();
  RETURN_IF_ERROR(failed);
  RETURN_IF_ERROR(response.status());
  if (response->status != 200) {
    const Status refused = checked(*response).status();
    const bool unnamed = response->status == 400 && options.model.empty();  // the server has several models
    return unnamed ? Status(refused.code(), refused.message() + "; name it with --model-name") : refused;
  }
  return Status(StatusCode::kUnavailable, "the server has ended the stream: it shuts down");
}

}  // namespace

int run_top(const TopOptions& options) {
  auto url = http::parse_url(options.url);
  if (!url.ok()) return print_error(url.status()), kExitBadInput;
  http::Client client(*url, options.api_key);
  catch_interrupts({SIGINT, SIGTERM});
  const Status status = follow(client, options);
  if (status.ok()) return 0;
  print_error(status);
  return 1;
}

}  // namespace millrace
