#include "app/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "pipeline/spawn.h"
#include "stages/stage.h"

namespace millrace {
namespace {

constexpr int kStopPollMs = 5;
constexpr std::string_view kErrorPrefix = "millrace: error: ";

// Reads do not wait.
Status make_pipe(int& reads, int& writes) {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return internal_error("cannot make a pipe: {}", std::strerror(errno));
  reads = ends[0];
  writes = ends[1];
  ::fcntl(reads, F_SETFL, O_NONBLOCK);
  return ok_status();
}

void close_pipe(int& descriptor) {
  if (descriptor >= 0) ::close(std::exchange(descriptor, -1));
}

}  // namespace

Result<std::unique_ptr<ServerProcess>> ServerProcess::start(ServerProcessOptions options) {
  ASSIGN_OR_RETURN(RunDir run_dir, RunDir::create());
  std::unique_ptr<ServerProcess> server(new ServerProcess(std::move(run_dir), std::move(options)));
  RETURN_IF_ERROR(server->spawn());
  return server;
}

Status ServerProcess::spawn() {
  SpawnOptions spawn{.arguments = options_.arguments};
  spawn.arguments.insert(spawn.arguments.begin(), "serve");
  for (const std::string& argument :
       {std::string("--no-tcp"), std::string("--uds"), socket(), std::string("--parent"), std::to_string(::getpid())}) {
    spawn.arguments.push_back(argument);
  }
  Status status = make_pipe(output_, spawn.standard_output);
  if (status.ok() && !options_.name.empty()) status = make_pipe(errors_, spawn.standard_error);
  ::signal(SIGCHLD, SIG_DFL);  // an ignored one would let the kernel reap the child
  if (status.ok()) {
    auto pid = spawn_self(spawn);
    status = pid.status();
    if (pid.ok()) pid_ = *pid;
  }
  close_pipe(spawn.standard_output);
  close_pipe(spawn.standard_error);
  return status;
}

ServerProcess::~ServerProcess() {
  stop();
  close_pipe(output_);
  close_pipe(errors_);
}

// False: there is nothing more now, or ever.
bool ServerProcess::read_some(int& descriptor, std::string& out) {
  if (descriptor < 0) return false;
  std::array<char, 4096> text{};
  const ssize_t bytes = ::read(descriptor, text.data(), text.size());
  if (bytes == 0) close_pipe(descriptor);
  if (bytes <= 0) return false;
  out.append(text.data(), static_cast<std::size_t>(bytes));
  return true;
}

void ServerProcess::take_line(std::string_view line) {
  if (line.starts_with(kErrorPrefix)) error_ = line.substr(kErrorPrefix.size());
  std::fprintf(stderr, "[%s] %.*s\n", options_.name.c_str(), static_cast<int>(line.size()), line.data());
}

void ServerProcess::take_lines() {
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = kept_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    take_line(std::string_view(kept_).substr(begin, end - begin));
  }
  kept_.erase(0, begin);
  if (kept_.size() <= kMaxLogLineBytes) return;
  take_line(kept_);
  kept_.clear();
}

ServerProcess::State ServerProcess::poll() {
  if (state_ == State::kEnded) return state_;
  std::string printed;
  while (read_some(output_, printed)) {
  }
  if (!printed.empty()) state_ = State::kReady;
  // First its end, then its last words.
  const bool ended = pid_ > 0 && ::waitpid(pid_, &wait_status_, WNOHANG) == pid_;
  while (read_some(errors_, kept_)) take_lines();
  if (ended) {
    state_ = State::kEnded;
  } else if (kill_at_ms_ >= 0 && monotonic_ms() >= kill_at_ms_) {
    ::kill(pid_, SIGKILL);
  } else if (interrupt_at_ms_ >= 0 && monotonic_ms() >= interrupt_at_ms_) {
    interrupt_at_ms_ = monotonic_ms() + kInterruptAgainMs;
    ::kill(pid_, SIGTERM);
  }
  return state_;
}

int ServerProcess::exit_code() const {
  return WIFSIGNALED(wait_status_) ? 128 + WTERMSIG(wait_status_) : WEXITSTATUS(wait_status_);
}

std::string ServerProcess::how() const { return error_.empty() ? describe_exit(wait_status_) : error_; }

void ServerProcess::terminate() {
  if (pid_ <= 0 || state_ == State::kEnded || kill_at_ms_ >= 0) return;
  kill_at_ms_ = monotonic_ms() + options_.grace_ms;
  ::kill(pid_, SIGTERM);
}

void ServerProcess::interrupt() {
  if (pid_ <= 0 || state_ == State::kEnded) return;
  kill_at_ms_ = monotonic_ms() + kPrivateServerGraceMs;
  interrupt_at_ms_ = monotonic_ms() + kInterruptAgainMs;
  ::kill(pid_, SIGTERM);
}

void ServerProcess::stop() {
  terminate();
  while (pid_ > 0 && poll() != State::kEnded) std::this_thread::sleep_for(std::chrono::milliseconds(kStopPollMs));
}

}  // namespace millrace
