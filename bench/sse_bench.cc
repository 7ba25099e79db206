// How many tokens a second the way around a model carries: HTTP, SSE, scheduler, detokenizer, front, with a runner that
// computes nothing. All stages are threads of one process, as `--placement single` has them; the clients are another
// process, so that the server's CPU time is its own.
//
//   sse_bench MODEL_DIR [streams=256] [tokens=400] [rounds=3]
//
// "a core" is tokens for each second of CPU time that the server took: what one core would carry.
#include <arpa/inet.h>
#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "app/instance.h"
#include "app/text_service.h"
#include "base/log.h"
#include "http/server.h"
#include "pipeline/text_pipeline.h"
#include "stages/generating/workers.h"
#include "text/tokenizer.h"

namespace {

using namespace millrace;

constexpr int32_t kPages = 65536, kPageSize = 16, kContext = 8192;
constexpr std::size_t kReadBytes = 256 << 10;

[[noreturn]] void die(const std::string& why) {
  fmt::print(stderr, "sse_bench: {}\n", why);
  std::exit(2);
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Answers every batch at once, with tokens that are plain words of the demo model's vocabulary.
class InstantRunner final : public Runner {
 public:
  explicit InstantRunner(int32_t vocabulary) : vocabulary_(vocabulary) {}
  RunnerFacts facts() const override {
    return {.vocab_size = vocabulary_,
            .context_length = kContext,
            .page_size = kPageSize,
            .page_count = kPages,
            .weight_version = 1};
  }
  Status submit(Batch batch) override {
    batches_.push_back(std::move(batch));
    return ok_status();
  }
  std::optional<BatchResult> poll(int) override {
    if (batches_.empty()) return std::nullopt;
    const Batch batch = std::move(batches_.front());
    batches_.pop_front();
    BatchResult result{.step = batch.step, .weight_version = 1};
    for (const SequenceStep& step : batch.sequences) {
      if (!step.answers()) continue;
      const auto place = static_cast<uint32_t>(step.position) * 2654435761u + static_cast<uint32_t>(step.request.value);
      result.tokens.push_back({.request = step.request, .token = 300 + static_cast<int32_t>(place % 2000)});
    }
    return result;
  }

 private:
  const int32_t vocabulary_;
  std::deque<Batch> batches_;
};

// The clients: `streams` requests at once; returns when all have ended, with the number of events that came.
int64_t run_clients(uint16_t port, int streams, int tokens) {
  const int epoll = ::epoll_create1(0);
  std::vector<std::string> tails(static_cast<std::size_t>(streams));
  std::vector<int> sockets;
  const std::string body = fmt::format(
      R"({{"prompt":[300,301,302],"max_tokens":{},"ignore_eos":true,"temperature":0,"stream":true}})", tokens);
  const std::string request = fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
      "application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < streams; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) die("cannot connect");
    if (::send(fd, request.data(), request.size(), 0) != static_cast<ssize_t>(request.size())) die("cannot send");
    epoll_event event{.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(i)}};
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    sockets.push_back(fd);
  }
  int64_t events = 0;
  std::vector<char> bytes(kReadBytes);
  for (int open = streams; open > 0;) {
    epoll_event ready[64];
    const int count = ::epoll_wait(epoll, ready, 64, 10'000);
    if (count <= 0) die("no byte for 10 s");
    for (int i = 0; i < count; ++i) {
      const auto at = ready[i].data.u32;
      const ssize_t got = ::recv(sockets[at], bytes.data(), bytes.size(), 0);
      if (got <= 0) {
        ::close(sockets[at]);
        --open;
        continue;
      }
      // Events are counted by their first bytes; one that is cut in two is found through what was left.
      std::string& tail = tails[at];
      tail.append(bytes.data(), static_cast<std::size_t>(got));
      std::size_t from = 0;
      for (std::size_t found; (found = tail.find("data: {", from)) != std::string::npos; from = found + 7) ++events;
      tail.erase(0, std::max(from, tail.size() > 6 ? tail.size() - 6 : 0));
    }
  }
  ::close(epoll);
  return events;
}

// Commands over a pipe: a port to load, answered by the events that came.
struct Clients {
  int to = -1, from = -1;
  static Clients fork(int streams, int tokens) {
    int down[2], up[2];
    if (::pipe(down) != 0 || ::pipe(up) != 0) die("no pipe");
    if (::fork() == 0) {
      ::close(down[1]);
      uint16_t port = 0;
      while (::read(down[0], &port, sizeof port) == sizeof port) {
        const int64_t events = run_clients(port, streams, tokens);
        if (::write(up[1], &events, sizeof events) != sizeof events) break;
      }
      ::_exit(0);
    }
    return {down[1], up[0]};
  }
  int64_t load(uint16_t port) const {
    int64_t events = 0;
    if (::write(to, &port, sizeof port) != sizeof port || ::read(from, &events, sizeof events) != sizeof events) {
      die("the clients are gone");
    }
    return events;
  }
};

// The two workers of text, over a runner that takes no time.
Library instant_library(const std::shared_ptr<const Tokenizer>& text, int streams) {
  Library library;
  SchedulerOptions options;
  options.max_running_requests = streams;
  library.workers["generate"] = [=](const Value&, const Library::WorkerSlot& slot) -> Result<std::unique_ptr<Worker>> {
    return make_generate_worker({.options = options,
                                 .load = [text](const LoadProgress&) -> Result<std::unique_ptr<Runner>> {
                                   return std::unique_ptr<Runner>(std::make_unique<InstantRunner>(text->vocab_size()));
                                 },
                                 .tokenizer = text,
                                 .streams = slot.streams});
  };
  library.workers["detokenize"] = [=](const Value&, const Library::WorkerSlot& slot) {
    return Result<std::unique_ptr<Worker>>(make_detokenize_worker(text, slot));
  };
  library.short_calls = {"generate", "detokenize"};
  return library;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) die("sse_bench MODEL_DIR [streams] [tokens] [rounds]");
  const int streams = argc > 2 ? std::atoi(argv[2]) : 256, tokens = argc > 3 ? std::atoi(argv[3]) : 400;
  const int rounds = argc > 4 ? std::atoi(argv[4]) : 3;
  const Clients clients = Clients::fork(streams, tokens);
  log_init("sse_bench", LogLevel::kWarning);
  auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) die(tokenizer.status().message());
  const std::shared_ptr<const Tokenizer> text = std::move(tokenizer).value();
  const int32_t vocabulary = text->vocab_size();

  ModelFacts facts;
  facts.name = "instant";
  facts.context_length = kContext;
  facts.vocab_size = vocabulary;
  TextComponents components{.tokenizer = text, .facts = facts, .max_prompt_bytes = 1 << 20};
  Library library = instant_library(text, streams);
  auto spec = load_text_or_file("", false, library);
  if (!spec.ok()) die(spec.status().message());
  auto instance = Instance::lead(std::move(spec).value(), std::move(library), {.single = true});
  if (!instance.ok()) die(instance.status().message());
  http::Server server(http::ServerOptions{});
  TextService service(std::move(components), {}, (*instance)->engine(), server);
  if (!server.start().ok()) die("no server");
  service.start();
  (*instance)->start();
  while (!(*instance)->engine().health().ready) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  for (int round = 0; round < rounds; ++round) {
    const double begin = now_s(), cpu = cpu_s();
    const int64_t events = clients.load(server.port());
    const double seconds = now_s() - begin, used = cpu_s() - cpu;
    const double all = static_cast<double>(streams) * tokens;
    fmt::print(
        "{} streams of {} tokens: {:.0f} tokens/s, {:.0f} tokens/s a core ({:.2f} us of CPU a token), {} events\n",
        streams, tokens, all / seconds, all / used, used / all * 1e6, events);
  }
  server.stop();
  (*instance)->stop();
  service.stop();
  return 0;
}
