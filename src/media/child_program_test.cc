// A program in its sandbox: what it reads and writes, the limits that end it, and what it is kept from. Python stands
// for a decoder that an attacker has taken over.
#include "media/child_program.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "media/child_sandbox.h"

namespace millrace {
namespace {

const std::vector<uint8_t> kInput = {'i', 'n', 'p', 'u', 't'};

Status drop(std::span<const uint8_t>) { return ok_status(); }

Status run_python(const std::string& script, const ChildLimits& limits, std::string* printed = nullptr) {
  const auto keep = [printed](std::span<const uint8_t> data) {
    if (printed != nullptr) printed->append(data.begin(), data.end());
    return ok_status();
  };
  return run_child({"/usr/bin/python3", "-I", "-S", "-c", script}, kInput, limits, keep);
}

// What `code` prints, or the name of the exception that it raises.
std::string attempt(const std::string& code) {
  const std::string script = "import os, socket, ctypes\ntry:\n  " + code +
                             "\nexcept BaseException as e:\n  print(type(e).__name__, getattr(e, 'errno', ''))\n";
  std::string printed;
  const Status status = run_python(script, {}, &printed);
  EXPECT_TRUE(status.ok()) << code << ": " << status.message() << "\n" << printed;
  return printed;
}

bool refused(const std::string& code) {
  const std::string printed = attempt(code);
  return printed.find("Error") != std::string::npos;
}

TEST(ChildProgram, ReadsItsInputAndHasNothingElseOfTheServer) {
  std::string seen;
  const Status status = run_python(
      "import os; print(open('/dev/fd/3').read(), len(os.environ), sorted(map(int, os.listdir('/proc/self/fd'))))", {},
      &seen);
  if (!status.ok() || seen.empty()) {  // Landlock hides /proc
    seen.clear();
    ASSERT_TRUE(run_python("import os; print(open('/dev/fd/3').read(), len(os.environ))", {}, &seen).ok());
    EXPECT_EQ(seen, "input 2\n");
    return;
  }
  EXPECT_EQ(seen, "input 2 [0, 1, 2, 3, 4]\n");
}

TEST(ChildProgram, ItsEndIsReported) {
  EXPECT_EQ(run_child({"/bin/sh", "-c", "exit 3"}, kInput, {}, drop).message(), "it cannot be decoded");
  EXPECT_EQ(run_child({"/no/such/program"}, kInput, {}, drop).message(),
            "the decoder could not be started in its sandbox");
  EXPECT_EQ(run_child({"/bin/sh", "-c", "while :; do echo yes; done"}, kInput, {},
                      [](std::span<const uint8_t>) { return invalid_argument("too much"); })
                .message(),
            "too much");
}

TEST(ChildProgram, LimitsEndIt) {
  const auto message = [](const char* script, const ChildLimits& limits) {
    return run_child({"/bin/sh", "-c", script}, kInput, limits, drop).message();
  };
  EXPECT_NE(message("while :; do :; done", {.cpu_seconds = 1}).find("ended by signal 9"), std::string::npos);
  EXPECT_NE(message("while :; do :; done", {.time = std::chrono::milliseconds(1)}).find("decoding took over 1 ms"),
            std::string::npos);
  EXPECT_NE(message("exec >&-; while :; do :; done", {}).find("ended by signal 9"), std::string::npos)
      << "its output is closed, and it goes on";
  EXPECT_EQ(run_child({"/bin/sleep", "600"}, kInput, {.cancelled = [] { return true; }}, drop).code(),
            StatusCode::kCancelled);
  EXPECT_FALSE(run_python("bytearray(200_000_000)", {.address_space = std::size_t{128} << 20}).ok());
}

TEST(ChildSandbox, FilesAreReadOnly) {
  const std::string file = ::testing::TempDir() + "written";
  EXPECT_TRUE(refused("open('" + file + "', 'w'); print('open')"));
  EXPECT_TRUE(refused("os.mkdir('" + file + "'); print('made')"));
  EXPECT_TRUE(refused("os.unlink('" + file + "'); print('gone')"));
  EXPECT_NE(::access(file.c_str(), F_OK), 0);
}

TEST(ChildSandbox, NoSockets) {
  EXPECT_TRUE(refused("socket.socket(); print('open')"));
  EXPECT_TRUE(refused("socket.socket(socket.AF_UNIX); print('open')"));
  EXPECT_TRUE(refused("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW); print('open')"));
  EXPECT_TRUE(refused("socket.socketpair(); print('open')"));
}

TEST(ChildSandbox, NoProcessesAndNoSignalsToOthers) {
  EXPECT_TRUE(refused("os.fork(); print('forked')"));
  EXPECT_TRUE(refused(fmt::format("os.kill({}, 0); print('sent')", ::getpid())));
  EXPECT_TRUE(refused("os.setpriority(os.PRIO_PROCESS, 0, -5); print('set')"));
  const std::string calls =
      "libc = ctypes.CDLL(None, use_errno=True); "
      "print([libc.syscall(n, 0, 0, 0, 0, 0) for n in (101, 310, 311, 321, 425, 272, 165)])";  // x86-64
#ifdef __x86_64__
  // ptrace, process_vm_readv, process_vm_writev, bpf, io_uring_setup, unshare, mount
  EXPECT_EQ(attempt(calls), "[-1, -1, -1, -1, -1, -1, -1]\n");
#endif
}

TEST(ChildSandbox, OnlySystemFilesAreRead) {
  if (ChildSandbox::describe().find("Landlock") == std::string::npos) GTEST_SKIP() << "the kernel has no Landlock";
  EXPECT_FALSE(refused("print(len(os.listdir('/usr')))"));
  EXPECT_TRUE(refused("print(open('/etc/passwd').read())"));
  EXPECT_TRUE(refused("print(os.listdir('/'))"));
  EXPECT_TRUE(refused("print(os.listdir('/proc'))"));
  EXPECT_TRUE(refused(fmt::format("print(open('/proc/{}/maps').read())", ::getpid())));
}

TEST(ChildProgram, AMissingProgramIsNamed) {
  const auto found = find_program("no-such-decoder", "decoders");
  EXPECT_EQ(found.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(found.status().message(),
            "no-such-decoder is not installed on the server; wanted Debian's package decoders");
}

}  // namespace
}  // namespace millrace
