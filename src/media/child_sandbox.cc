#include "media/child_sandbox.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

namespace millrace {
namespace {

// What ffmpeg, ffprobe, their libraries and the C library call, with any arguments.
constexpr std::array kCalls = {
    "read",
    "readv",
    "pread64",
    "write",
    "writev",
    "lseek",
    "close",
    "close_range",
    "dup",
    "dup2",
    "dup3",
    "pipe",
    "pipe2",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "fcntl",
    "ioctl",
    "fstat",
    "stat",
    "lstat",
    "newfstatat",
    "statx",
    "statfs",
    "fstatfs",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getdents64",
    "getcwd",
    "fadvise64",
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "madvise",
    "mlock",
    "munlock",
    "brk",
    "get_mempolicy",
    "set_mempolicy",
    "futex",
    "set_robust_list",
    "get_robust_list",
    "rseq",
    "set_tid_address",
    "arch_prctl",
    "membarrier",
    "exit",
    "exit_group",
    "execve",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sigaltstack",
    "restart_syscall",
    "getpid",
    "getppid",
    "gettid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getrlimit",
    "getrusage",
    "times",
    "sysinfo",
    "uname",
    "getrandom",
    "sched_yield",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "clock_gettime",
    "clock_getres",
    "clock_nanosleep",
    "nanosleep",
    "gettimeofday",
    "time",
};
constexpr unsigned long kWriteFlags = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;
constexpr std::array kPrctls = {PR_CAPBSET_READ, PR_GET_NAME, PR_SET_NAME, 0x53564d41 /* PR_SET_VMA */};
constexpr int kNamespaces = CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC;

bool allow(scmp_filter_ctx filter, const char* call, std::vector<scmp_arg_cmp> conditions = {}) {
  const int number = seccomp_syscall_resolve_name(call);
  if (number == __NR_SCMP_ERROR || number < 0) return true;  // this architecture has no such call
  return seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, number, static_cast<unsigned>(conditions.size()),
                                conditions.data()) == 0;
}

scmp_arg_cmp masked(unsigned argument, unsigned long mask, unsigned long value) {
  return {argument, SCMP_CMP_MASKED_EQ, mask, value};
}

bool add_rules(scmp_filter_ctx filter) {
  bool added = true;
  for (const char* call : kCalls) added = added && allow(filter, call);
  added = added && allow(filter, "open", {masked(1, kWriteFlags, 0)});
  added = added && allow(filter, "openat", {masked(2, kWriteFlags, 0)});
  // Threads, no processes. clone3 hides its flags from a filter: without it the C library calls clone.
  added = added && allow(filter, "clone", {masked(0, CLONE_THREAD, CLONE_THREAD)});
  added = added && allow(filter, "prlimit64", {{0, SCMP_CMP_EQ, 0, 0}});  // its own
  for (const int option : kPrctls) {
    added = added && allow(filter, "prctl", {{0, SCMP_CMP_EQ, static_cast<scmp_datum_t>(option), 0}});
  }
  return added;
}

int create_ruleset(const landlock_ruleset_attr* attributes, std::size_t size, unsigned flags) {
  return static_cast<int>(::syscall(SYS_landlock_create_ruleset, attributes, size, flags));
}

constexpr uint64_t kReads = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr uint64_t kRuns = kReads | LANDLOCK_ACCESS_FS_EXECUTE;
constexpr uint64_t kFirstVersionRights = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;  // all of version 1

void permit(int ruleset, const std::string& path, uint64_t rights) {
  const int folder = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (folder < 0) return;  // what is not there needs no permission
  if (!std::filesystem::is_directory(path)) rights &= ~uint64_t{LANDLOCK_ACCESS_FS_READ_DIR};
  const landlock_path_beneath_attr rule{.allowed_access = rights, .parent_fd = folder};
  ::syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
  ::close(folder);
}

// -1: the kernel has no Landlock.
int make_ruleset(const std::string& program) {
  if (create_ruleset(nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION) < 1) return -1;
  const landlock_ruleset_attr attributes{.handled_access_fs = kFirstVersionRights};
  const int ruleset = create_ruleset(&attributes, sizeof attributes, 0);
  if (ruleset < 0) return -1;
  std::error_code failed;
  const std::filesystem::path file = std::filesystem::canonical(program, failed);
  const std::filesystem::path prefix = file.parent_path().parent_path();  // /opt/ffmpeg of /opt/ffmpeg/bin/ffmpeg
  if (!failed && prefix.has_relative_path()) permit(ruleset, prefix, kRuns);
  if (!failed) permit(ruleset, file, kRuns);
  permit(ruleset, "/usr", kRuns);  // the interpreter of a program that is a script
  for (const char* libraries : {"/lib", "/lib64"}) permit(ruleset, libraries, kRuns);  // where they are no links
  for (const char* path : {"/etc/ld.so.cache", "/etc/ld.so.preload", "/sys/devices/system", "/proc/filesystems",
                           "/proc/cpuinfo", "/dev/null", "/dev/zero", "/dev/urandom"}) {
    permit(ruleset, path, kReads);
  }
  return ruleset;
}

}  // namespace

struct ChildSandbox::Filter {
  std::vector<sock_filter> program;

  // Once in a process.
  static Result<std::shared_ptr<const Filter>> make() {
    const std::unique_ptr<void, void (*)(scmp_filter_ctx)> rules(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)), seccomp_release);
    const int file = ::memfd_create("filter", MFD_CLOEXEC);
    bool made = rules != nullptr && file >= 0 && add_rules(rules.get()) && seccomp_export_bpf(rules.get(), file) == 0;
    auto out = std::make_shared<Filter>();
    const off_t size = made ? ::lseek(file, 0, SEEK_END) : 0;
    out->program.resize(static_cast<std::size_t>(std::max<off_t>(size, 0)) / sizeof(sock_filter));
    made =
        made && !out->program.empty() && ::pread(file, out->program.data(), static_cast<std::size_t>(size), 0) == size;
    if (file >= 0) ::close(file);
    if (!made) return error(StatusCode::kUnsupported, "the decoder's filter of system calls cannot be made");
    return std::shared_ptr<const Filter>(std::move(out));
  }
};

Result<ChildSandbox> ChildSandbox::make(const std::string& path) {
  static const Result<std::shared_ptr<const Filter>> filter = Filter::make();
  RETURN_IF_ERROR(filter.status());
  return ChildSandbox(*filter, make_ruleset(path));
}

ChildSandbox::~ChildSandbox() {
  if (ruleset_ >= 0) ::close(ruleset_);
}

ChildSandbox::ChildSandbox(ChildSandbox&& other) noexcept
    : filter_(std::move(other.filter_)), ruleset_(std::exchange(other.ruleset_, -1)) {}

bool ChildSandbox::enter() const {
  // Not everywhere: a container or an administrator may forbid them.
  ::unshare(kNamespaces);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  if (ruleset_ >= 0 && ::syscall(SYS_landlock_restrict_self, ruleset_, 0) != 0) return false;
  const sock_fprog program{static_cast<unsigned short>(filter_->program.size()),
                           const_cast<sock_filter*>(filter_->program.data())};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

const std::string& ChildSandbox::describe() {
  static const std::string text = [] {
    std::string out = "seccomp";
    if (create_ruleset(nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION) >= 1) out += ", Landlock";
    const pid_t child = ::vfork();
    if (child == 0) ::_exit(::unshare(kNamespaces) == 0 ? 0 : 1);
    int status = 1;
    while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (child > 0 && status == 0) out += ", namespaces of users, network and IPC";
    return out;
  }();
  return text;
}

}  // namespace millrace
