// relay_mooncake: Mooncake's transfer engine as a relay plugin, over its C interface. Built where transfer_engine_c.h
// and libtransfer_engine are found.
//
// Reads are READ transfers; messages are notifications, whose text is the message in hexadecimal, because the interface
// carries C strings. Each has its own text, and receive() hands out all that came, so none can be lost to another's
// waiter. The engine's blob is the base address and size of its memory and the name of its segment ("host:port", as
// with P2PHANDSHAKE, so no metadata server is needed).
//
// MILLRACE_MOONCAKE_PROTOCOL: "tcp" by default, or "rdma". MILLRACE_MOONCAKE_METADATA: "P2PHANDSHAKE" by default.
// MILLRACE_MOONCAKE_HOST: this host's address, "127.0.0.1" by default.
#include <sys/mman.h>
#include <transfer_engine_c.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <string>

#include "plugins/relay_plugin.h"

struct millrace_relay_engine {
  struct Peer {
    int32_t segment = 0;
    uint64_t base = 0, bytes = 0;
    bool self = false;
  };
  transfer_engine_t engine = nullptr;
  std::string segment;  // our own
  void* memory = nullptr;
  uint64_t bytes = 0;
  bool registered = false;
  std::map<uint64_t, Peer> peers;
  std::map<uint64_t, uint64_t> transfers;  // ours -> the batch
  std::deque<std::string> inbox;
  uint64_t next = 1;
};

namespace {

constexpr uint32_t kMagic = 0x4E434F4D;
constexpr std::size_t kMaxInbox = 4096;
constexpr std::size_t kMaxSegmentName = 256;

struct BlobHead {
  uint32_t magic = kMagic;
  uint32_t name_bytes = 0;
  uint64_t base = 0;
  uint64_t bytes = 0;
};

const char* setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

int available(char*, size_t) { return MILLRACE_RELAY_OK; }

void close_engine(millrace_relay_engine* engine) {
  for (const auto& [id, batch] : engine->transfers) (void)freeBatchID(engine->engine, batch);
  for (const auto& [id, peer] : engine->peers) (void)closeSegment(engine->engine, peer.segment);
  if (engine->registered) (void)unregisterLocalMemory(engine->engine, engine->memory);
  if (engine->engine) destroyTransferEngine(engine->engine);
  if (engine->memory) ::munmap(engine->memory, engine->bytes);
  delete engine;
}

// "" or why not.
std::string start(millrace_relay_engine& engine, const char* name) {
  const char* host = setting("MILLRACE_MOONCAKE_HOST", "127.0.0.1");
  const char* metadata = setting("MILLRACE_MOONCAKE_METADATA", "P2PHANDSHAKE");
  const char* protocol = setting("MILLRACE_MOONCAKE_PROTOCOL", "tcp");
  const bool handshake = std::strcmp(metadata, "P2PHANDSHAKE") == 0;
  engine.engine = createTransferEngine(metadata, handshake ? host : name, host, 0, 0);
  if (!engine.engine) return "the transfer engine does not start";
  if (!installTransport(engine.engine, protocol, nullptr)) return std::string("no transport '") + protocol + "'";
  engine.segment = name;
  if (handshake) {
    char where[kMaxSegmentName] = {};
    if (getLocalIpAndPort(engine.engine, where, sizeof(where)) != 0) return "the engine has no address";
    engine.segment = where;
  }
  void* mapped = ::mmap(nullptr, engine.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return "no memory";
  engine.memory = mapped;
  if (registerLocalMemory(engine.engine, mapped, engine.bytes, "cpu:0", 1) != 0) return "the memory is not registered";
  engine.registered = true;
  return "";
}

int open_engine(const millrace_relay_config* config, millrace_relay_engine** out, void** memory, char* reason,
                size_t capacity) {
  if (config->struct_bytes < sizeof(millrace_relay_config)) return MILLRACE_RELAY_INVALID;
  auto* engine = new (std::nothrow) millrace_relay_engine;
  if (!engine) return MILLRACE_RELAY_FAILED;
  engine->bytes = config->memory_bytes;
  const std::string why = start(*engine, config->name);
  if (!why.empty()) {
    std::snprintf(reason, capacity, "Mooncake: %s", why.c_str());
    close_engine(engine);
    return MILLRACE_RELAY_FAILED;
  }
  *memory = engine->memory;
  *out = engine;
  return MILLRACE_RELAY_OK;
}

int blob(millrace_relay_engine* engine, void* out, size_t capacity, size_t* size) {
  BlobHead head;
  head.name_bytes = static_cast<uint32_t>(engine->segment.size());
  head.base = reinterpret_cast<uint64_t>(engine->memory);
  head.bytes = engine->bytes;
  if (sizeof(head) + engine->segment.size() > capacity) return MILLRACE_RELAY_EXHAUSTED;
  std::memcpy(out, &head, sizeof(head));
  std::memcpy(static_cast<char*>(out) + sizeof(head), engine->segment.data(), engine->segment.size());
  *size = sizeof(head) + engine->segment.size();
  return MILLRACE_RELAY_OK;
}

int connect(millrace_relay_engine* engine, const void* bytes, size_t size, uint64_t* peer) {
  BlobHead head;
  if (size < sizeof(head)) return MILLRACE_RELAY_INVALID;
  std::memcpy(&head, bytes, sizeof(head));
  if (head.magic != kMagic || head.name_bytes != size - sizeof(head) || head.name_bytes == 0 ||
      head.name_bytes >= kMaxSegmentName || head.base > UINT64_MAX - head.bytes) {
    return MILLRACE_RELAY_INVALID;
  }
  const std::string name(static_cast<const char*>(bytes) + sizeof(head), head.name_bytes);
  if (name.find('\0') != std::string::npos) return MILLRACE_RELAY_INVALID;
  const int32_t segment = openSegment(engine->engine, name.c_str());
  if (segment < 0) return MILLRACE_RELAY_GONE;
  *peer = engine->next++;
  engine->peers[*peer] = {segment, head.base, head.bytes, name == engine->segment};
  return MILLRACE_RELAY_OK;
}

void disconnect(millrace_relay_engine* engine, uint64_t id) {
  const auto at = engine->peers.find(id);
  if (at == engine->peers.end()) return;
  (void)closeSegment(engine->engine, at->second.segment);
  engine->peers.erase(at);
}

bool inside(uint64_t offset, uint64_t bytes, uint64_t all) { return offset <= all && bytes <= all - offset; }

int read(millrace_relay_engine* engine, uint64_t id, uint64_t from, uint64_t to, uint64_t bytes, uint64_t* transfer) {
  const auto at = engine->peers.find(id);
  if (at == engine->peers.end() || !inside(from, bytes, at->second.bytes) || !inside(to, bytes, engine->bytes)) {
    return MILLRACE_RELAY_INVALID;
  }
  const uint64_t batch = allocateBatchID(engine->engine, 1);
  if (batch == INVALID_BATCH) return MILLRACE_RELAY_EXHAUSTED;
  transfer_request_t request{};
  request.opcode = OPCODE_READ;
  request.source = static_cast<char*>(engine->memory) + to;
  request.target_id = at->second.segment;
  request.target_offset = at->second.base + from;
  request.length = bytes;
  if (submitTransfer(engine->engine, batch, &request, 1) != 0) {
    (void)freeBatchID(engine->engine, batch);
    return MILLRACE_RELAY_GONE;
  }
  *transfer = engine->next++;
  engine->transfers[*transfer] = batch;
  return MILLRACE_RELAY_OK;
}

int poll(millrace_relay_engine* engine, uint64_t id) {
  const auto at = engine->transfers.find(id);
  if (at == engine->transfers.end()) return MILLRACE_RELAY_INVALID;
  transfer_status_t status{};
  if (getTransferStatus(engine->engine, at->second, 0, &status) != 0) status.status = STATUS_FAILED;
  // A transfer that timed out may still be written to; its end is FAILED or COMPLETED.
  if (status.status == STATUS_WAITING || status.status == STATUS_PENDING || status.status == STATUS_TIMEOUT) {
    return MILLRACE_RELAY_PENDING;
  }
  (void)freeBatchID(engine->engine, at->second);
  engine->transfers.erase(at);
  if (status.status == STATUS_COMPLETED) return MILLRACE_RELAY_OK;
  return status.status == STATUS_FAILED ? MILLRACE_RELAY_GONE : MILLRACE_RELAY_FAILED;
}

void abandon(millrace_relay_engine*, uint64_t) {}  // the interface cannot cancel

int send(millrace_relay_engine* engine, uint64_t id, const void* message, size_t size) {
  const auto at = engine->peers.find(id);
  if (at == engine->peers.end()) return MILLRACE_RELAY_INVALID;
  const auto* bytes = static_cast<const uint8_t*>(message);
  if (at->second.self) {
    if (engine->inbox.size() < kMaxInbox) engine->inbox.emplace_back(reinterpret_cast<const char*>(bytes), size);
    return MILLRACE_RELAY_OK;
  }
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  std::string name = "millrace";
  const notify_msg_t notification{name.data(), text.data()};
  const int code = genNotifyInEngine(engine->engine, static_cast<uint64_t>(at->second.segment), notification);
  return code == 0 ? MILLRACE_RELAY_OK : MILLRACE_RELAY_GONE;
}

// "" for what is not hexadecimal.
std::string unhex(const char* text) {
  std::string bytes;
  for (; text[0] && text[1]; text += 2) {
    unsigned value = 0;
    char pair[3] = {text[0], text[1], 0};
    if (std::sscanf(pair, "%2x", &value) != 1) return "";
    bytes += static_cast<char>(value);
  }
  return bytes;
}

int receive(millrace_relay_engine* engine, void* out, size_t capacity, size_t* size) {
  if (engine->inbox.empty()) {
    int count = 0;
    notify_msg_t* news = getNotifsFromEngine(engine->engine, &count);
    for (int i = 0; news && i < count; ++i) {
      if (!news[i].msg || std::strlen(news[i].msg) > 2 * MILLRACE_RELAY_MAX_MESSAGE) continue;
      if (engine->inbox.size() < kMaxInbox) engine->inbox.push_back(unhex(news[i].msg));
    }
    if (news) (void)freeNotifsMsgBuf(news, count);
  }
  if (engine->inbox.empty()) return MILLRACE_RELAY_PENDING;
  const std::string message = std::move(engine->inbox.front());
  engine->inbox.pop_front();
  if (message.size() > capacity) return MILLRACE_RELAY_PENDING;
  std::memcpy(out, message.data(), message.size());
  *size = message.size();
  return MILLRACE_RELAY_OK;
}

const millrace_relay_plugin kPlugin = {
    MILLRACE_RELAY_ABI,
    sizeof(millrace_relay_plugin),
    "mooncake",
    1,
    1,
    1,
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
