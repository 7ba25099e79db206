// A double of libcudart and libnccl for tests, in one shared object: the functions that nccl/nccl_api.h names, in
// host memory. "Device" memory is what cudaMalloc gave; a stream is a thread with a queue; a communicator is a
// socket between two ranks, of this process or of two, found by a name in the unique id.
//
// It is as unfriendly as the real ones where that matters: a communicator is made without blocking, and a call may
// return ncclInProgress; a transfer whose peer is gone hangs until ncclCommAbort; sending from memory that is not the
// device's, or a count that differs from the peer's, is an error; two operations never overtake each other on a stream.
//
// Environment: FAKE_NCCL_DEVICES (1), FAKE_NCCL_VERSION (22809), FAKE_NCCL_HANG (1: no transfer ever ends by itself).
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "nccl/nccl_api.h"

namespace {

using millrace::nccl::Config;
using millrace::nccl::PointerAttributes;
using millrace::nccl::UniqueId;

constexpr int kOk = 0;
constexpr int kInvalid = 1;          // cudaErrorInvalidValue
constexpr int kNotReady = 600;       // cudaErrorNotReady
constexpr int kSystemError = 2;      // ncclSystemError
constexpr int kInvalidArgument = 4;  // ncclInvalidArgument
constexpr int kInProgress = 7;       // ncclInProgress
constexpr int kPollMs = 20;
constexpr std::size_t kAlignment = 256;

int setting(const char* name, int usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::atoi(text);
}

struct Memory {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> blocks;
  bool holds(const void* at, std::size_t bytes) {
    const auto* p = static_cast<const std::byte*>(at);
    std::lock_guard lock(mutex);
    auto after = blocks.upper_bound(p);
    if (after == blocks.begin()) return false;
    --after;
    return p + bytes <= after->first + after->second;
  }
};
Memory& memory() {
  static auto* const instance = new Memory;
  return *instance;
}

sockaddr_un name_of(const UniqueId& id, socklen_t& size) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, id.internal, 32);  // abstract: no file is left
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 33);
  return name;
}

struct Listeners {
  std::mutex mutex;
  std::map<std::string, int> by_id;
};
Listeners& listeners() {
  static auto* const instance = new Listeners;
  return *instance;
}

}  // namespace

struct FakeStream {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  uint64_t queued = 0;
  uint64_t finished = 0;
  bool closing = false;
  std::thread thread{[this] { run(); }};

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return closing || !work.empty(); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      lock.unlock();
      next();
      lock.lock();
      ++finished;
    }
  }
  void push(std::function<void()> next) {
    std::lock_guard lock(mutex);
    work.push_back(std::move(next));
    ++queued;
    changed.notify_all();
  }
};

struct FakeEvent {
  FakeStream* stream = nullptr;
  uint64_t at = 0;
};

struct FakeComm {
  int rank = 0;
  std::atomic<int> state{kInProgress};
  std::atomic<bool> aborted{false};
  std::atomic<int> fd{-1};
  std::atomic<int> running{0};
  std::thread joiner;
  int calls = 0;
  std::function<void()> later;  // puts on its stream what a call that returned ncclInProgress was for

  bool wait_for(int socket, short what) const {
    while (!aborted) {
      pollfd wanted{socket, what, 0};
      if (::poll(&wanted, 1, kPollMs) > 0) return true;
    }
    return false;
  }
  // A kernel that waits for a rank that does not come.
  void hang() const {
    while (!aborted) ::usleep(1000);
  }
  void move(bool sending, std::byte* at, std::size_t bytes) {
    uint64_t count = bytes, theirs = bytes;
    if (setting("FAKE_NCCL_HANG", 0) != 0) return hang();
    if (!transfer(sending, reinterpret_cast<std::byte*>(sending ? &count : &theirs), sizeof(count))) return;
    if (theirs != bytes) {
      state = kInvalidArgument;
      return hang();
    }
    (void)transfer(sending, at, bytes);
  }
  bool transfer(bool sending, std::byte* at, std::size_t bytes) {
    while (bytes > 0) {
      if (!wait_for(fd, sending ? POLLOUT : POLLIN)) return false;
      const ssize_t n =
          sending ? ::send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : ::recv(fd, at, bytes, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (n <= 0) {
        hang();
        return false;
      }
      at += n;
      bytes -= static_cast<std::size_t>(n);
    }
    return true;
  }
};

namespace {

void join_first(FakeComm* comm, const UniqueId& id) {
  int listener = -1;
  {
    std::lock_guard lock(listeners().mutex);
    const auto at = listeners().by_id.find(std::string(id.internal, 32));
    if (at != listeners().by_id.end()) {
      listener = at->second;
      listeners().by_id.erase(at);
    }
  }
  if (listener < 0) {
    comm->state = kSystemError;
    return;
  }
  if (comm->wait_for(listener, POLLIN)) comm->fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  ::close(listener);
  comm->state = comm->fd >= 0 ? kOk : kSystemError;
}

void join_second(FakeComm* comm, const UniqueId& id) {
  socklen_t size = 0;
  const sockaddr_un name = name_of(id, size);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&name), size) != 0) {
    if (fd >= 0) ::close(fd);
    // The first rank is gone: the real one would go on trying.
    comm->hang();
    comm->state = kSystemError;
    return;
  }
  comm->fd = fd;
  comm->state = kOk;
}

int enqueue(FakeComm* comm, FakeStream* stream, bool sending, void* at, std::size_t bytes) {
  if (comm->state != kOk) return kInvalidArgument;
  if (bytes == 0 || !memory().holds(at, bytes)) return kInvalidArgument;
  const auto put = [=] {
    ++comm->running;
    stream->push([=] {
      comm->move(sending, static_cast<std::byte*>(at), bytes);
      --comm->running;
    });
  };
  if (++comm->calls % 2 == 0) {
    put();
    return kOk;
  }
  comm->later = put;
  comm->state = kInProgress;
  return kInProgress;
}

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) {
  *count = setting("FAKE_NCCL_DEVICES", 1);
  return *count > 0 ? kOk : 100;
}
int cudaGetDevice(int* device) { return *device = 0; }
int cudaSetDevice(int device) { return device == 0 ? kOk : kInvalid; }
int cudaMalloc(void** to, std::size_t bytes) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  *to = std::aligned_alloc(kAlignment, rounded);
  if (*to == nullptr) return 2;
  std::lock_guard lock(memory().mutex);
  memory().blocks[static_cast<std::byte*>(*to)] = bytes;
  return kOk;
}
int cudaFree(void* block) {
  {
    std::lock_guard lock(memory().mutex);
    if (memory().blocks.erase(static_cast<std::byte*>(block)) == 0) return kInvalid;
  }
  std::free(block);
  return kOk;
}
int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int, FakeStream* stream) {
  stream->push([=] { std::memcpy(to, from, bytes); });
  return kOk;
}
int cudaPointerGetAttributes(PointerAttributes* attributes, const void* at) {
  *attributes = {};
  attributes->type = memory().holds(at, 1) ? 2 : 0;
  attributes->device = attributes->type == 2 ? 0 : -2;
  return kOk;
}
int cudaStreamCreateWithFlags(FakeStream** stream, unsigned) {
  *stream = new FakeStream;
  return kOk;
}
int cudaStreamDestroy(FakeStream* stream) {
  {
    std::lock_guard lock(stream->mutex);
    stream->closing = true;
    stream->changed.notify_all();
  }
  stream->thread.join();
  delete stream;
  return kOk;
}
int cudaEventCreateWithFlags(FakeEvent** event, unsigned) {
  *event = new FakeEvent;
  return kOk;
}
int cudaEventRecord(FakeEvent* event, FakeStream* stream) {
  std::lock_guard lock(stream->mutex);
  event->stream = stream;
  event->at = stream->queued;
  return kOk;
}
int cudaEventQuery(FakeEvent* event) {
  if (event->stream == nullptr) return kOk;
  std::lock_guard lock(event->stream->mutex);
  return event->stream->finished >= event->at ? kOk : kNotReady;
}
int cudaEventDestroy(FakeEvent* event) {
  delete event;
  return kOk;
}
const char* cudaGetErrorString(int code) { return code == 100 ? "no CUDA-capable device is detected" : "an error"; }

int ncclGetVersion(int* version) {
  *version = setting("FAKE_NCCL_VERSION", 22809);
  return kOk;
}
int ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  if (::getrandom(id->internal, 32, 0) != 32) return kSystemError;
  // As the real one: random bytes, then the address of the first rank.
  const sockaddr_in first{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  std::memcpy(id->internal + 8, &first, sizeof(first));
  socklen_t size = 0;
  const sockaddr_un name = name_of(*id, size);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&name), size) != 0 || ::listen(fd, 1) != 0) {
    if (fd >= 0) ::close(fd);
    return kSystemError;
  }
  std::lock_guard lock(listeners().mutex);
  listeners().by_id[std::string(id->internal, 32)] = fd;
  return kOk;
}
int ncclCommInitRankConfig(FakeComm** comm, int ranks, UniqueId id, int rank, Config* config) {
  if (ranks != 2 || config->magic != 0xcafebeef || config->blocking != 0) return kInvalidArgument;
  *comm = new FakeComm;
  (*comm)->rank = rank;
  (*comm)->joiner = std::thread([comm = *comm, id, rank] { rank == 0 ? join_first(comm, id) : join_second(comm, id); });
  return kInProgress;
}
int ncclCommGetAsyncError(FakeComm* comm, int* state) {
  *state = comm->state;
  if (comm->later) {  // it is on its stream when the next question is asked, not earlier
    std::exchange(comm->later, nullptr)();
    comm->state = kOk;
  }
  return kOk;
}
int ncclCommAbort(FakeComm* comm) {
  comm->aborted = true;
  if (comm->joiner.joinable()) comm->joiner.join();
  while (comm->running > 0) ::usleep(100);
  if (comm->fd >= 0) ::close(comm->fd);
  delete comm;
  return kOk;
}
int ncclSend(const void* from, std::size_t count, int type, int peer, FakeComm* comm, FakeStream* stream) {
  if (type != 1 || (peer != 0 && peer != 1)) return kInvalidArgument;
  return enqueue(comm, stream, true, const_cast<void*>(from), count);
}
int ncclRecv(void* to, std::size_t count, int type, int peer, FakeComm* comm, FakeStream* stream) {
  if (type != 1 || (peer != 0 && peer != 1)) return kInvalidArgument;
  return enqueue(comm, stream, false, to, count);
}
int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, FakeComm* comm,
                  FakeStream* stream) {
  if (type != 1 || from != to || (root != 0 && root != 1)) return kInvalidArgument;
  return enqueue(comm, stream, comm->rank == root, to, count);
}
const char* ncclGetErrorString(int) { return "an error of the double"; }

}  // extern "C"
