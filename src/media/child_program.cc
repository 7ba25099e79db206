#include "media/child_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/argv.h"
#include "base/file_descriptor.h"
#include "media/child_sandbox.h"

namespace millrace {
namespace {

constexpr int kInputDescriptor = 3;  // kChildInput
constexpr rlim_t kOpenFiles = 32;
constexpr int kNotStarted = 127;  // exit status, as of a shell
constexpr int kPollMs = 100;
constexpr int kEndPollMs = 2, kMaxEndMs = 5000;  // from the end of its output to its own
constexpr std::size_t kReadBytes = std::size_t{1} << 16;
constexpr char kDefaultPath[] = "/usr/local/bin:/usr/bin:/bin";

Status no_resource(const char* what) {
  return error(StatusCode::kResourceExhausted, "a process for a decoder cannot be started: {}: {}", what,
               std::strerror(errno));
}

Status fill(int file, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return no_resource("memory for its input");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return ok_status();
}

bool set_limit(__rlimit_resource resource, rlim_t value) {
  const rlimit limit{value, value};
  return ::setrlimit(resource, &limit) == 0;
}

// The system call and not dup2(): ThreadSanitizer's dup2() allocates, which fails once RLIMIT_AS holds.
bool put_at(int number, int file) { return ::syscall(SYS_dup3, file, number, 0) == number; }

struct Start {
  char* const* argv;
  char* const* envp;
  int input, output, null;
  const ChildLimits& limits;
  const ChildSandbox& sandbox;
};

// In the new process, which still has the memory of this one: system calls alone.
[[noreturn]] void become(const Start& start) {
  const bool limited = set_limit(RLIMIT_AS, start.limits.address_space) &&
                       set_limit(RLIMIT_CPU, static_cast<rlim_t>(start.limits.cpu_seconds)) &&
                       set_limit(RLIMIT_FSIZE, 0) && set_limit(RLIMIT_CORE, 0) && set_limit(RLIMIT_NOFILE, kOpenFiles);
  const bool ends_with_parent = ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::chdir("/") == 0;
  // The sandbox comes before the descriptors are closed, since one of them is its ruleset.
  const bool enclosed = start.sandbox.enter();
  const bool wired = put_at(STDIN_FILENO, start.null) && put_at(STDOUT_FILENO, start.output) &&
                     put_at(STDERR_FILENO, start.null) && put_at(kInputDescriptor, start.input) &&
                     ::close_range(kInputDescriptor + 1, ~0u, 0) == 0;
  if (limited && ends_with_parent && enclosed && wired) ::execve(start.argv[0], start.argv, start.envp);
  ::_exit(kNotStarted);
}

// vfork(), since fork() of a process with a model's weights copies their page tables. Signals are blocked meanwhile, so
// no handler of this process runs in the new one; it keeps them blocked, and is ended by SIGKILL alone.
[[gnu::noinline]] pid_t start_process(const Start& start) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::vfork();
  if (pid == 0) become(start);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pid;
}

// Reads until the process closes its output.
Status read_output(int output, const ChildLimits& limits,
                   const std::function<Status(std::span<const uint8_t>)>& on_output) {
  const auto deadline = std::chrono::steady_clock::now() + limits.time;
  std::vector<uint8_t> buffer(kReadBytes);
  while (true) {
    if (limits.cancelled()) return Status(StatusCode::kCancelled, "no request waits for it any more");
    if (std::chrono::steady_clock::now() > deadline) {
      return invalid_argument("decoding took over {} ms; wanted a shorter or smaller one{}", limits.time.count(),
                              limits.option);
    }
    pollfd one{output, POLLIN, 0};
    if (::poll(&one, 1, kPollMs) <= 0) continue;
    const ssize_t count = ::read(output, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return ok_status();
    RETURN_IF_ERROR(on_output({buffer.data(), static_cast<std::size_t>(count)}));
  }
}

// One that has closed its output ends soon, or is ended.
Status end_process(pid_t pid, bool kill, const ChildLimits& limits) {
  int status = 0;
  for (int waited_ms = 0; !kill && ::waitpid(pid, &status, WNOHANG) == 0; waited_ms += kEndPollMs) {
    kill = waited_ms >= kMaxEndMs;
    if (!kill) ::poll(nullptr, 0, kEndPollMs);
  }
  if (kill) {
    ::kill(pid, SIGKILL);
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ok_status();
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotStarted) {
    return error(StatusCode::kInternal, "the decoder could not be started in its sandbox");
  }
  if (WIFSIGNALED(status)) {
    return invalid_argument("the decoder ended by signal {}; wanted one that needs at most {} s and {} MiB",
                            WTERMSIG(status), limits.cpu_seconds, limits.address_space >> 20);
  }
  return invalid_argument("it cannot be decoded");
}

}  // namespace

Result<std::string> find_program(const std::string& name, const std::string& package) {
  const char* given = std::getenv("PATH");
  std::string_view path = given != nullptr ? given : kDefaultPath;
  while (!path.empty()) {
    const std::string_view folder = path.substr(0, path.find(':'));
    std::string file = fmt::format("{}/{}", folder, name);
    if (folder.starts_with('/') && ::access(file.c_str(), X_OK) == 0) return file;
    path.remove_prefix(std::min(path.size(), folder.size() + 1));
  }
  return error(StatusCode::kUnsupported, "{} is not installed on the server; wanted Debian's package {}", name,
               package);
}

Status run_child(const std::vector<std::string>& arguments, std::span<const uint8_t> input, const ChildLimits& limits,
                 const std::function<Status(std::span<const uint8_t>)>& on_output) {
  ASSIGN_OR_RETURN(const ChildSandbox sandbox, ChildSandbox::make(arguments.front()));
  const FileDescriptor file(::memfd_create("input", MFD_CLOEXEC));
  if (file.get() < 0) return no_resource("a file for its input");
  RETURN_IF_ERROR(fill(file.get(), input));
  const FileDescriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  int ends[2] = {-1, -1};
  if (null.get() < 0 || ::pipe2(ends, O_CLOEXEC) != 0) return no_resource("a pipe");
  const FileDescriptor output(ends[0]);
  FileDescriptor inside(ends[1]);
  // Above the numbers that they get in the process, so that none is overwritten on the way.
  const FileDescriptor high_input(::fcntl(file.get(), F_DUPFD_CLOEXEC, 16));
  FileDescriptor high_output(::fcntl(inside.get(), F_DUPFD_CLOEXEC, 16));
  const FileDescriptor high_null(::fcntl(null.get(), F_DUPFD_CLOEXEC, 16));
  if (high_input.get() < 0 || high_output.get() < 0 || high_null.get() < 0) return no_resource("a descriptor");
  std::vector<std::string> words = arguments, environment = {"PATH=/usr/bin:/bin", "LC_ALL=C"};
  const std::vector<char*> argv = argv_of(words), envp = argv_of(environment);
  const pid_t pid =
      start_process({argv.data(), envp.data(), high_input.get(), high_output.get(), high_null.get(), limits, sandbox});
  if (pid < 0) return no_resource("vfork");
  inside.reset();
  high_output.reset();
  const Status read = read_output(output.get(), limits, on_output);
  const Status ended = end_process(pid, !read.ok(), limits);
  return read.ok() ? ended : read;
}

}  // namespace millrace
