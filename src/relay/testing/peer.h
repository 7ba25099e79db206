// For tests: the other side of a relay in a process of its own, which can be killed or frozen.
//
// The child is this same program, spawned with --relay-peer=NAME; it makes one relay by the setup of that name and
// handles one command after the other, which come over a socket:
//      put SEED SIZES             "ok DESCRIPTOR" or "error CODE"
//      get DESCRIPTOR SEED SIZES TIMEOUT_MS   answers at the end: "ok", "error CODE" or "differs ..."; keeps the parts
//      check                      looks at all parts that it keeps again: "ok" or "differs ..."
//      drop                       releases them: "ok"
//      put_end                    waits for the end of the last put: "CODE"
//      address                    "ok ADDRESS in hexadecimal"
//      books                      "quiet" when everything is back (waits for it), else "busy ..."
// The child ends when its parent does, or the socket closes.
//
// Thread safety: one thread at a time; start it before or after other threads, it is not forked.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "relay/testing/conformance.h"

namespace millrace::relay_testing {

class Peer {
 public:
  // Null where the program could not be spawned.
  static std::unique_ptr<Peer> start(const ConformanceSetup& setup, const RelayOptions& options);
  ~Peer();  // kills it
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // The answer to a command; "gone" when the child is dead or silent for kPatienceMs.
  std::string ask(const std::string& command);
  void send_command(const std::string& command);
  std::string receive_answer();

  void kill();      // SIGKILL, and waits until it is gone
  void freeze();    // SIGSTOP, and waits until no thread of it runs
  void carry_on();  // SIGCONT
  pid_t pid() const { return pid_; }

 private:
  Peer(pid_t pid, int fd) : pid_(pid), fd_(fd) {}
  pid_t pid_;
  int fd_;
};

// The child's side: what conformance_main() does when it was asked for; nullopt when not. The exit code.
std::optional<int> run_peer(int argc, char** argv, const std::vector<ConformanceSetup>& setups);

std::string hex(std::string_view bytes);
std::string unhex(std::string_view text);
std::string join(const std::vector<std::size_t>& sizes);  // "1,2,3"

}  // namespace millrace::relay_testing
