// relay_memory: the plugin of the tests. Processes of one host and user read each other's memory files through /proc
// and send each other datagrams. It exists to hold the C interface and its host to the conformance suite; real edges
// take shm.
//
// `listen` may ask for bad behaviour: "hang_read" (no transfer ever ends), "hang_close" (close() does not return),
// "drop=N" (each N-th message is lost), "double=N" (is sent twice).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string>

#include "plugins/relay_plugin.h"

namespace {

constexpr uint32_t kMagic = 0x4D4D524D;
constexpr size_t kMaxName = 64;

// How an engine is reached.
struct Blob {
  uint32_t magic = kMagic;
  int32_t pid = 0;
  int32_t fd = 0;
  uint32_t zero = 0;
  uint64_t inode = 0;  // of the memory file: a reused pid or fd is another one
  uint64_t bytes = 0;
  char name[kMaxName] = {};
};

struct Peer {
  Blob blob;
  void* memory = nullptr;
};

sockaddr_un address_of(const char* name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Abstract: nothing stays in the file system.
  const int written = std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "millrace-%s", name);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(written));
  return address;
}

}  // namespace

struct millrace_relay_engine {
  Blob self;
  void* memory = nullptr;
  int socket = -1;
  std::map<uint64_t, Peer> peers;
  std::map<uint64_t, int> transfers;
  uint64_t next = 1;
  uint64_t sent = 0;
  bool hang_read = false, hang_close = false;
  uint64_t drop = 0, twice = 0;
};

namespace {

int available(char*, size_t) { return MILLRACE_RELAY_OK; }

void close_engine(millrace_relay_engine* engine) {
  while (engine->hang_close) ::usleep(100'000);
  for (auto& [id, peer] : engine->peers) ::munmap(peer.memory, peer.blob.bytes);
  if (engine->memory) ::munmap(engine->memory, engine->self.bytes);
  if (engine->self.fd > 0) ::close(engine->self.fd);
  if (engine->socket >= 0) ::close(engine->socket);
  delete engine;
}

// The number after `word` in "drop=3"; 0 where it is not there.
uint64_t number_after(const std::string& text, const char* word) {
  const size_t at = text.find(word);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + std::strlen(word), nullptr, 10);
}

bool open_memory(millrace_relay_engine& engine, uint64_t bytes) {
  engine.self.fd = ::memfd_create("millrace-relay-memory", MFD_CLOEXEC);
  engine.self.bytes = bytes;
  struct stat info {};
  if (engine.self.fd < 0 || ::ftruncate(engine.self.fd, static_cast<off_t>(bytes)) != 0 ||
      ::fstat(engine.self.fd, &info) != 0) {
    return false;
  }
  engine.self.inode = info.st_ino;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, engine.self.fd, 0);
  if (memory == MAP_FAILED) return false;
  engine.memory = memory;
  return true;
}

bool open_socket(millrace_relay_engine& engine) {
  engine.socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = address_of(engine.self.name, &length);
  return engine.socket >= 0 && ::bind(engine.socket, reinterpret_cast<const sockaddr*>(&address), length) == 0;
}

int open_engine(const millrace_relay_config* config, millrace_relay_engine** out, void** memory, char* reason,
                size_t capacity) {
  if (config->struct_bytes < sizeof(millrace_relay_config) || std::strlen(config->name) >= kMaxName) {
    return MILLRACE_RELAY_INVALID;
  }
  auto* engine = new (std::nothrow) millrace_relay_engine;
  if (!engine) return MILLRACE_RELAY_FAILED;
  std::strncpy(engine->self.name, config->name, kMaxName - 1);
  engine->self.pid = ::getpid();
  if (!open_memory(*engine, config->memory_bytes) || !open_socket(*engine)) {
    std::snprintf(reason, capacity, "no memory file or no socket: %s", std::strerror(errno));
    close_engine(engine);
    return MILLRACE_RELAY_FAILED;
  }
  const std::string listen = config->listen;
  engine->hang_read = listen.find("hang_read") != std::string::npos;
  engine->hang_close = listen.find("hang_close") != std::string::npos;
  engine->drop = number_after(listen, "drop=");
  engine->twice = number_after(listen, "double=");
  *memory = engine->memory;
  *out = engine;
  return MILLRACE_RELAY_OK;
}

int blob(millrace_relay_engine* engine, void* out, size_t capacity, size_t* size) {
  if (capacity < sizeof(Blob)) return MILLRACE_RELAY_INVALID;
  std::memcpy(out, &engine->self, sizeof(Blob));
  *size = sizeof(Blob);
  return MILLRACE_RELAY_OK;
}

int connect(millrace_relay_engine* engine, const void* bytes, size_t size, uint64_t* out) {
  Peer peer;
  if (size != sizeof(Blob)) return MILLRACE_RELAY_INVALID;
  std::memcpy(&peer.blob, bytes, sizeof(Blob));
  const Blob& b = peer.blob;
  if (b.magic != kMagic || b.zero != 0 || b.pid <= 0 || b.fd < 0 || b.bytes == 0 || b.name[kMaxName - 1] != 0) {
    return MILLRACE_RELAY_INVALID;
  }
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", b.pid, b.fd);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return MILLRACE_RELAY_GONE;
  struct stat info {};
  const bool same = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_ino == b.inode &&
                    static_cast<uint64_t>(info.st_size) == b.bytes;
  void* memory = same ? ::mmap(nullptr, b.bytes, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  ::close(fd);
  if (memory == MAP_FAILED) return same ? MILLRACE_RELAY_EXHAUSTED : MILLRACE_RELAY_GONE;
  peer.memory = memory;
  *out = engine->next++;
  engine->peers[*out] = peer;
  return MILLRACE_RELAY_OK;
}

void disconnect(millrace_relay_engine* engine, uint64_t id) {
  const auto at = engine->peers.find(id);
  if (at == engine->peers.end()) return;
  ::munmap(at->second.memory, at->second.blob.bytes);
  engine->peers.erase(at);
}

bool inside(uint64_t offset, uint64_t bytes, uint64_t all) { return offset <= all && bytes <= all - offset; }

int read(millrace_relay_engine* engine, uint64_t id, uint64_t from, uint64_t to, uint64_t bytes, uint64_t* transfer) {
  const auto at = engine->peers.find(id);
  if (at == engine->peers.end() || !inside(from, bytes, at->second.blob.bytes) ||
      !inside(to, bytes, engine->self.bytes)) {
    return MILLRACE_RELAY_INVALID;
  }
  *transfer = engine->next++;
  if (engine->hang_read) {
    engine->transfers[*transfer] = MILLRACE_RELAY_PENDING;
    return MILLRACE_RELAY_OK;
  }
  std::memcpy(static_cast<char*>(engine->memory) + to, static_cast<const char*>(at->second.memory) + from, bytes);
  engine->transfers[*transfer] = MILLRACE_RELAY_OK;
  return MILLRACE_RELAY_OK;
}

int poll(millrace_relay_engine* engine, uint64_t transfer) {
  const auto at = engine->transfers.find(transfer);
  if (at == engine->transfers.end()) return MILLRACE_RELAY_INVALID;
  const int state = at->second;
  if (state != MILLRACE_RELAY_PENDING) engine->transfers.erase(at);
  return state;
}

void abandon(millrace_relay_engine*, uint64_t) {}

int send(millrace_relay_engine* engine, uint64_t id, const void* message, size_t size) {
  const auto at = engine->peers.find(id);
  if (at == engine->peers.end()) return MILLRACE_RELAY_INVALID;
  const uint64_t count = ++engine->sent;
  if (engine->drop && count % engine->drop == 0) return MILLRACE_RELAY_OK;
  socklen_t length = 0;
  const sockaddr_un address = address_of(at->second.blob.name, &length);
  const int copies = engine->twice && count % engine->twice == 0 ? 2 : 1;
  for (int i = 0; i < copies; ++i) {
    if (::sendto(engine->socket, message, size, MSG_DONTWAIT | MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&address), length) >= 0) {
      continue;
    }
    if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) return MILLRACE_RELAY_PENDING;
    return errno == ECONNREFUSED ? MILLRACE_RELAY_GONE : MILLRACE_RELAY_FAILED;
  }
  return MILLRACE_RELAY_OK;
}

int receive(millrace_relay_engine* engine, void* out, size_t capacity, size_t* size) {
  const ssize_t got = ::recv(engine->socket, out, capacity, MSG_DONTWAIT);
  if (got < 0) return MILLRACE_RELAY_PENDING;
  *size = static_cast<size_t>(got);
  return MILLRACE_RELAY_OK;
}

const millrace_relay_plugin kPlugin = {
    MILLRACE_RELAY_ABI,
    sizeof(millrace_relay_plugin),
    "memory",
    1,
    1,
    0,
    0,
    available,
    open_engine,
    close_engine,
    blob,
    connect,
    disconnect,
    read,
    poll,
    abandon,
    send,
    receive,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const millrace_relay_plugin* millrace_relay_plugin_v1(void) {
  return &kPlugin;
}
