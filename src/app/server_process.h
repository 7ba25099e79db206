// ServerProcess: a private `millrace serve`, a child that listens on a Unix socket in a private folder
// and on nothing else.
//
// It is ready when it prints its address, which is when the model is loaded. Its messages meanwhile (progress, errors)
// go to this process's stderr: as it is, or with a name before each line, and then its error is kept too.
// It ends when the thread that started it does, however that ends.
//
// Owner: `run`, or the router. Thread safety: one thread; the one that started it must live as long.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "pipeline/run_dir.h"

namespace millrace {

inline constexpr int kPrivateServerGraceMs = 10'000;  // from SIGTERM to SIGKILL: longer than a server's grace
inline constexpr int kInterruptAgainMs = 2'000;
inline constexpr std::size_t kMaxLogLineBytes = 8192;  // of a child; the rest begins a new line

struct ServerProcessOptions {
  std::vector<std::string> arguments;    // of `serve`, without where it listens
  std::string name;                      // before each line of its stderr; "": it has this process's
  int grace_ms = kPrivateServerGraceMs;  // from terminate() to SIGKILL
};

class ServerProcess {
 public:
  enum class State { kLoading, kReady, kEnded };

  static Result<std::unique_ptr<ServerProcess>> start(ServerProcessOptions options);
  ~ServerProcess();  // stop()
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  // Looks without waiting.
  State poll();
  std::string url() const { return "unix:" + socket(); }
  std::string socket() const { return run_dir_.path() + "/server.sock"; }

  // After kEnded: 128 and more for a signal; and in words: its error, where it has a name, or "exit code 2".
  int exit_code() const;
  std::string how() const;

  void terminate();  // SIGTERM, once; poll() sends SIGKILL after the grace
  void interrupt();  // SIGTERM again: a server ends what it runs. poll() sends SIGKILL after kPrivateServerGraceMs
  void stop();       // the same, and waits. Idempotent

 private:
  ServerProcess(RunDir run_dir, ServerProcessOptions options)
      : run_dir_(std::move(run_dir)), options_(std::move(options)) {}
  Status spawn();
  bool read_some(int& descriptor, std::string& out);
  void take_lines();
  void take_line(std::string_view line);

  const RunDir run_dir_;
  const ServerProcessOptions options_;
  pid_t pid_ = -1;
  int output_ = -1, errors_ = -1;  // what it prints; -1: closed
  State state_ = State::kLoading;
  int wait_status_ = 0;
  int64_t kill_at_ms_ = -1;       // -1: it was not asked to end
  int64_t interrupt_at_ms_ = -1;  // of the next signal, since two that come at once are one
  std::string kept_, error_;      // the begin of a line; what the last error was
};

}  // namespace millrace
