#include "relay/testing/peer.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <list>
#include <sstream>

#include "relay/testing/await.h"
#include "relay/testing/patterns.h"

extern char** environ;

namespace millrace::relay_testing {
namespace {

constexpr std::size_t kMaxCommandBytes = 150'000;  // within the default buffer of a socket
constexpr int kPeerFd = 3;
constexpr std::string_view kNameFlag = "--relay-peer=";
constexpr std::string_view kOptionsFlag = "--relay-options=";

std::vector<std::size_t> split(const std::string& text) {
  std::vector<std::size_t> sizes;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) sizes.push_back(std::stoull(item));
  return sizes;
}

std::string pack_options(const RelayOptions& o) {
  return fmt::format("{} {} {} {} {} {} {}", o.pool_bytes, o.credits, o.lease_ms, o.connect_timeout_ms, o.silent_ms,
                     o.streams, o.run_dir);
}

void unpack_options(const std::string& text, RelayOptions& o) {
  std::istringstream in(text);
  in >> o.pool_bytes >> o.credits >> o.lease_ms >> o.connect_timeout_ms >> o.silent_ms >> o.streams;
  std::string run_dir;
  if (in >> run_dir) o.run_dir = run_dir;
}

// What the child keeps between commands.
class Servant {
 public:
  explicit Servant(Relay& relay) : relay_(relay) {}

  std::string handle(const std::string& command) {
    std::istringstream in(command);
    std::string verb;
    in >> verb;
    if (verb == "put") return put(in);
    if (verb == "get") return get(in);
    if (verb == "check") return check();
    if (verb == "drop") return kept_.clear(), "ok";
    if (verb == "address") return "ok " + hex(relay_.address());
    if (verb == "books") return books();
    if (verb == "put_end") {
      const std::optional<Status> status = put_end_.wait();
      return status ? std::string(status_code_name(status->code())) : "never";
    }
    return "error unknown command " + verb;
  }

 private:
  struct Kept {
    uint64_t seed;
    std::vector<std::size_t> sizes;
    std::vector<SharedBytes> parts;
  };

  std::string put(std::istringstream& in) {
    uint64_t seed = 0;
    std::string sizes;
    in >> seed >> sizes;
    put_end_ = AwaitPut();
    PutRequest request;
    request.parts = make_parts(seed, split(sizes));
    request.done = put_end_.callback();
    Result<PutTicket> ticket = relay_.put(std::move(request));
    if (!ticket.ok()) return fmt::format("error {}", status_code_name(ticket.status().code()));
    return "ok " + hex(ticket->descriptor);
  }

  std::string get(std::istringstream& in) {
    std::string descriptor, sizes;
    Kept kept;
    GetRequest request;
    in >> descriptor >> kept.seed >> sizes >> request.timeout_ms;
    kept.sizes = split(sizes);
    request.descriptor = unhex(descriptor);
    request.sizes = kept.sizes;
    AwaitGet end;
    request.done = end.callback();
    const Result<RelayOp> op = relay_.get(std::move(request));
    if (!op.ok()) return fmt::format("error {}", status_code_name(op.status().code()));
    std::optional<Result<std::vector<SharedBytes>>> parts = end.wait();
    if (!parts) return "error never";
    if (!parts->ok()) return fmt::format("error {}", status_code_name(parts->status().code()));
    kept.parts = std::move(**parts);
    kept_.push_back(std::move(kept));
    return check();
  }

  std::string check() {
    for (const Kept& kept : kept_) {
      const std::string difference = differs(kept.seed, kept.sizes, kept.parts);
      if (!difference.empty()) return "differs: " + difference;
    }
    return "ok";
  }

  std::string books() {
    const bool quiet = eventually([this] {
      const RelayBooks b = relay_.books();
      return b.puts == 0 && b.gets == 0 && b.held_bytes == 0 && b.lent_parts == 0;
    });
    const RelayBooks b = relay_.books();
    return quiet ? "quiet" : fmt::format("busy {} {} {} {}", b.puts, b.gets, b.held_bytes, b.lent_parts);
  }

  Relay& relay_;
  AwaitPut put_end_;
  std::list<Kept> kept_;
};

int serve(const ConformanceSetup& setup, const RelayOptions& options) {
  Result<std::unique_ptr<Relay>> relay = setup.make(options);
  if (!relay.ok()) {
    fmt::print(stderr, "the peer has no relay: {}\n", relay.status().to_string());
    return 2;
  }
  Servant servant(**relay);
  std::string command(kMaxCommandBytes, '\0');
  while (true) {
    const ssize_t got = ::recv(kPeerFd, command.data(), command.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    const std::string answer = servant.handle(command.substr(0, static_cast<std::size_t>(got)));
    if (::send(kPeerFd, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) return 0;
  }
}

}  // namespace

std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    text += kDigits[static_cast<uint8_t>(c) >> 4];
    text += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return text;
}

std::string unhex(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

std::string join(const std::vector<std::size_t>& sizes) {
  std::string text;
  for (const std::size_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text;
}

std::unique_ptr<Peer> Peer::start(const ConformanceSetup& setup, const RelayOptions& options) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return nullptr;
  std::string name = std::string(kNameFlag) + setup.name;
  std::string packed = std::string(kOptionsFlag) + pack_options(options);
  std::string program = "relay_peer";
  char* arguments[] = {program.data(), name.data(), packed.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fds[1], kPeerFd);  // without close-on-exec, unless it is the same number
  pid_t pid = -1;
  const int failed =
      fds[1] == kPeerFd ? EBUSY : ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(fds[1]);
  if (failed != 0) {
    ::close(fds[0]);
    return nullptr;
  }
  return std::unique_ptr<Peer>(new Peer(pid, fds[0]));
}

Peer::~Peer() {
  kill();
  ::close(fd_);
}

void Peer::send_command(const std::string& command) {
  (void)!::send(fd_, command.data(), command.size(), MSG_NOSIGNAL);
}

std::string Peer::receive_answer() {
  pollfd wanted{fd_, POLLIN, 0};
  if (::poll(&wanted, 1, 2 * kPatienceMs) != 1) return "gone";
  std::string answer(kMaxCommandBytes, '\0');
  const ssize_t got = ::recv(fd_, answer.data(), answer.size(), 0);
  if (got <= 0) return "gone";
  answer.resize(static_cast<std::size_t>(got));
  return answer;
}

std::string Peer::ask(const std::string& command) {
  send_command(command);
  return receive_answer();
}

void Peer::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}
// Until the thread that gets the signal runs, the others do: on a busy host for long.
void Peer::freeze() {
  ::kill(pid_, SIGSTOP);
  siginfo_t stopped;
  ::waitid(P_PID, static_cast<id_t>(pid_), &stopped, WSTOPPED | WEXITED | WNOWAIT);
}
void Peer::carry_on() { ::kill(pid_, SIGCONT); }

std::optional<int> run_peer(int argc, char** argv, const std::vector<ConformanceSetup>& setups) {
  std::string name, options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kNameFlag)) name = argument.substr(kNameFlag.size());
    if (argument.starts_with(kOptionsFlag)) options = argument.substr(kOptionsFlag.size());
  }
  if (name.empty()) return std::nullopt;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const ConformanceSetup& setup : setups) {
    if (setup.name != name) continue;
    RelayOptions merged = setup.options;
    unpack_options(options, merged);
    return serve(setup, merged);
  }
  return 2;
}

}  // namespace millrace::relay_testing
