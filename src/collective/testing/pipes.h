// Helpers of the tests: a connected pair of sockets, crc32, and ranks that are processes of tests/oracles/gloo_peer.py.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collective/little_endian.h"
#include "collective/stream_socket.h"

namespace millrace::collective {

inline WaitLimit soon() { return {Clock::now() + std::chrono::seconds(60), nullptr}; }

// Both ends of one connection.
inline std::pair<StreamSocket, StreamSocket> socket_pair() {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {StreamSocket(fds[0]), StreamSocket(fds[1])};
}

inline void put(StreamSocket& socket, std::string_view bytes) {
  const Status status = socket.write_all(bytes_of(bytes), soon());
  ASSERT_TRUE(status.ok()) << status.to_string();
}

// What has arrived so far.
inline std::string take(StreamSocket& socket) {
  std::string out(1 << 20, '\0');
  const ssize_t count = recv(socket.fd(), out.data(), out.size(), MSG_DONTWAIT);
  out.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return out;
}

// The peer reads the end of the stream; what it sends still arrives.
inline void finish(StreamSocket& socket) { shutdown(socket.fd(), SHUT_WR); }

class Crc32 {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      state_ ^= static_cast<uint32_t>(byte);
      for (int bit = 0; bit < 8; ++bit) state_ = (state_ & 1) != 0 ? 0xEDB88320u ^ (state_ >> 1) : state_ >> 1;
    }
  }
  uint32_t value() const { return ~state_; }

 private:
  uint32_t state_ = 0xFFFFFFFFu;
};

// One rank in Python: a process that takes commands as lines and answers each with a line.
class PythonRank {
 public:
  explicit PythonRank(const std::vector<std::string>& arguments) {
    int in[2], out[2];
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    std::vector<std::string> command{"python3", MILLRACE_SOURCE_DIR "/tests/oracles/gloo_peer.py"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& part : command) argv.push_back(part.data());
    argv.push_back(nullptr);
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
  }
  ~PythonRank() {
    fclose(to_);  // its standard input ends, and so does it
    fclose(from_);
    waitpid(pid_, nullptr, 0);
  }
  PythonRank(const PythonRank&) = delete;
  PythonRank& operator=(const PythonRank&) = delete;

  void command(const std::string& line) {
    fputs((line + "\n").c_str(), to_);
    fflush(to_);
  }
  // The number behind `word` in its next line; 0 for a word alone.
  uint32_t answer(const std::string& word) {
    char line[256] = "";
    if (fgets(line, sizeof(line), from_) == nullptr) line[0] = '\0';
    const std::string text(line);
    EXPECT_TRUE(text.starts_with(word)) << "seen '" << text << "', wanted " << word;
    return text.size() > word.size() + 1 ? static_cast<uint32_t>(std::stoul("0" + text.substr(word.size() + 1))) : 0;
  }

 private:
  pid_t pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

}  // namespace millrace::collective
