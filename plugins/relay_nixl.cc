// relay_nixl: NIXL as a relay plugin, over its C++ interface (nixlAgent). Built where nixl.h and libnixl are found.
//
// Reads are NIXL_READ transfers between the two registered memories; messages are NIXL notifications, each with its own
// bytes, and receive() hands out all that getNotifs() gave, so no notification can wake another's waiter. The engine's
// blob is the base address of its memory, the agent's name and the agent's metadata; addresses in it are NIXL's way to
// name registered memory, and a range is checked against the registered size before it is used.
//
// MILLRACE_NIXL_BACKEND names the NIXL backend, "UCX" by default. NIXL's shared memory transports do not notice a dead
// peer; the host's own liveness does.
#include <nixl.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "plugins/relay_plugin.h"

struct millrace_relay_engine {
  struct Peer {
    std::string agent;
    uint64_t base = 0, bytes = 0;
  };
  std::string name;
  std::unique_ptr<nixlAgent> agent;
  nixlBackendH* backend = nullptr;
  void* memory = nullptr;
  uint64_t bytes = 0;
  bool registered = false;
  std::map<uint64_t, Peer> peers;
  std::map<uint64_t, nixlXferReqH*> transfers;
  std::deque<std::string> inbox;
  uint64_t next = 1;
};

namespace {

constexpr uint32_t kMagic = 0x4C58494E;
constexpr std::size_t kMaxInbox = 4096;  // messages that wait for receive(); more are dropped and will be said again

struct BlobHead {
  uint32_t magic = kMagic;
  uint32_t name_bytes = 0;
  uint64_t base = 0;
  uint64_t bytes = 0;
};

const char* backend_name() {
  const char* name = std::getenv("MILLRACE_NIXL_BACKEND");
  return name && *name ? name : "UCX";
}

// No exception of the library crosses the C interface.
template <typename F>
int guarded(F&& f) {
  try {
    return f();
  } catch (const std::exception&) {
    return MILLRACE_RELAY_FAILED;
  }
}

int code_of(nixl_status_t status) {
  switch (status) {
    case NIXL_SUCCESS:
      return MILLRACE_RELAY_OK;
    case NIXL_IN_PROG:
      return MILLRACE_RELAY_PENDING;
    case NIXL_ERR_INVALID_PARAM:
    case NIXL_ERR_MISMATCH:
      return MILLRACE_RELAY_INVALID;
    case NIXL_ERR_REMOTE_DISCONNECT:
    case NIXL_ERR_NOT_FOUND:
      return MILLRACE_RELAY_GONE;
    default:
      return MILLRACE_RELAY_FAILED;
  }
}

int available(char* reason, size_t capacity) {
  return guarded([&] {
    nixlAgent probe("millrace-probe", nixlAgentConfig());
    nixl_mem_list_t mems;
    nixl_b_params_t params;
    if (probe.getPluginParams(backend_name(), mems, params) == NIXL_SUCCESS) return MILLRACE_RELAY_OK;
    std::snprintf(reason, capacity, "NIXL has no backend '%s'", backend_name());
    return MILLRACE_RELAY_FAILED;
  });
}

nixl_reg_dlist_t registration(const millrace_relay_engine& engine) {
  nixl_reg_dlist_t list(DRAM_SEG);
  list.addDesc(nixlBlobDesc(reinterpret_cast<uintptr_t>(engine.memory), engine.bytes, 0, ""));
  return list;
}

void close_engine(millrace_relay_engine* engine) {
  (void)guarded([&] {
    for (const auto& [id, request] : engine->transfers) (void)engine->agent->releaseXferReq(request);
    for (const auto& [id, peer] : engine->peers) (void)engine->agent->invalidateRemoteMD(peer.agent);
    if (engine->registered) (void)engine->agent->deregisterMem(registration(*engine));
    engine->agent.reset();
    return MILLRACE_RELAY_OK;
  });
  if (engine->memory) ::munmap(engine->memory, engine->bytes);
  delete engine;
}

int open_agent(millrace_relay_engine& engine, char* reason, size_t capacity) {
  nixlAgentConfig config;
  config.useProgThread = true;  // a target must make progress for reads that are emulated
  engine.agent = std::make_unique<nixlAgent>(engine.name, config);
  nixl_mem_list_t mems;
  nixl_b_params_t params;
  nixl_status_t status = engine.agent->getPluginParams(backend_name(), mems, params);
  if (status == NIXL_SUCCESS) status = engine.agent->createBackend(backend_name(), params, engine.backend);
  if (status == NIXL_SUCCESS) status = engine.agent->registerMem(registration(engine));
  engine.registered = status == NIXL_SUCCESS;
  if (!engine.registered) std::snprintf(reason, capacity, "NIXL backend '%s': status %d", backend_name(), int(status));
  return code_of(status);
}

int open_engine(const millrace_relay_config* config, millrace_relay_engine** out, void** memory, char* reason,
                size_t capacity) {
  if (config->struct_bytes < sizeof(millrace_relay_config)) return MILLRACE_RELAY_INVALID;
  auto* engine = new (std::nothrow) millrace_relay_engine;
  if (!engine) return MILLRACE_RELAY_FAILED;
  const int code = guarded([&] {
    engine->name = config->name;
    engine->bytes = config->memory_bytes;
    void* mapped = ::mmap(nullptr, engine->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return MILLRACE_RELAY_EXHAUSTED;
    engine->memory = mapped;
    return open_agent(*engine, reason, capacity);
  });
  if (code != MILLRACE_RELAY_OK) {
    close_engine(engine);
    return code < 0 ? code : MILLRACE_RELAY_FAILED;
  }
  *memory = engine->memory;
  *out = engine;
  return MILLRACE_RELAY_OK;
}

int blob(millrace_relay_engine* engine, void* out, size_t capacity, size_t* size) {
  return guarded([&] {
    nixl_blob_t metadata;
    if (engine->agent->getLocalMD(metadata) != NIXL_SUCCESS) return MILLRACE_RELAY_FAILED;
    BlobHead head;
    head.name_bytes = static_cast<uint32_t>(engine->name.size());
    head.base = reinterpret_cast<uint64_t>(engine->memory);
    head.bytes = engine->bytes;
    const std::string bytes = std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + engine->name + metadata;
    if (bytes.size() > capacity) return MILLRACE_RELAY_EXHAUSTED;
    std::memcpy(out, bytes.data(), bytes.size());
    *size = bytes.size();
    return MILLRACE_RELAY_OK;
  });
}

int connect(millrace_relay_engine* engine, const void* bytes, size_t size, uint64_t* peer) {
  return guarded([&] {
    const std::string text(static_cast<const char*>(bytes), size);
    BlobHead head;
    if (size < sizeof(head)) return MILLRACE_RELAY_INVALID;
    std::memcpy(&head, text.data(), sizeof(head));
    if (head.magic != kMagic || head.name_bytes > size - sizeof(head) || head.base > UINT64_MAX - head.bytes) {
      return MILLRACE_RELAY_INVALID;
    }
    const std::string wanted = text.substr(sizeof(head), head.name_bytes);
    std::string agent = engine->name;
    if (wanted != engine->name) {
      const nixl_status_t status = engine->agent->loadRemoteMD(text.substr(sizeof(head) + head.name_bytes), agent);
      if (status != NIXL_SUCCESS) return code_of(status);
      if (agent != wanted) return MILLRACE_RELAY_INVALID;
    }
    *peer = engine->next++;
    engine->peers[*peer] = {agent, head.base, head.bytes};
    return MILLRACE_RELAY_OK;
  });
}

void disconnect(millrace_relay_engine* engine, uint64_t id) {
  const auto at = engine->peers.find(id);
  if (at == engine->peers.end()) return;
  (void)guarded([&] { return code_of(engine->agent->invalidateRemoteMD(at->second.agent)); });
  engine->peers.erase(at);
}

bool inside(uint64_t offset, uint64_t bytes, uint64_t all) { return offset <= all && bytes <= all - offset; }

int read(millrace_relay_engine* engine, uint64_t id, uint64_t from, uint64_t to, uint64_t bytes, uint64_t* transfer) {
  return guarded([&] {
    const auto at = engine->peers.find(id);
    if (at == engine->peers.end() || !inside(from, bytes, at->second.bytes) || !inside(to, bytes, engine->bytes)) {
      return MILLRACE_RELAY_INVALID;
    }
    nixl_xfer_dlist_t here(DRAM_SEG), there(DRAM_SEG);
    here.addDesc(nixlBasicDesc(reinterpret_cast<uintptr_t>(engine->memory) + to, bytes, 0));
    there.addDesc(nixlBasicDesc(static_cast<uintptr_t>(at->second.base + from), bytes, 0));
    nixlXferReqH* request = nullptr;
    nixl_status_t status = engine->agent->createXferReq(NIXL_READ, here, there, at->second.agent, request);
    if (status != NIXL_SUCCESS) return code_of(status);
    status = engine->agent->postXferReq(request);
    if (status != NIXL_SUCCESS && status != NIXL_IN_PROG) {
      (void)engine->agent->releaseXferReq(request);
      return code_of(status);
    }
    *transfer = engine->next++;
    engine->transfers[*transfer] = request;
    return MILLRACE_RELAY_OK;
  });
}

int poll(millrace_relay_engine* engine, uint64_t id) {
  return guarded([&] {
    const auto at = engine->transfers.find(id);
    if (at == engine->transfers.end()) return MILLRACE_RELAY_INVALID;
    const nixl_status_t status = engine->agent->getXferStatus(at->second);
    if (status == NIXL_IN_PROG) return MILLRACE_RELAY_PENDING;
    // Not released: NIXL may still be writing, so the memory stays ours until it says otherwise.
    if (engine->agent->releaseXferReq(at->second) != NIXL_SUCCESS) return MILLRACE_RELAY_PENDING;
    engine->transfers.erase(at);
    return code_of(status);
  });
}

// NIXL ends an active transfer when its handle is released, and refuses where it cannot; only poll() does that.
void abandon(millrace_relay_engine*, uint64_t) {}

int send(millrace_relay_engine* engine, uint64_t id, const void* message, size_t size) {
  return guarded([&] {
    const auto at = engine->peers.find(id);
    if (at == engine->peers.end()) return MILLRACE_RELAY_INVALID;
    const std::string bytes(static_cast<const char*>(message), size);
    if (at->second.agent == engine->name) {  // to itself
      if (engine->inbox.size() < kMaxInbox) engine->inbox.push_back(bytes);
      return MILLRACE_RELAY_OK;
    }
    return code_of(engine->agent->genNotif(at->second.agent, bytes));
  });
}

int receive(millrace_relay_engine* engine, void* out, size_t capacity, size_t* size) {
  return guarded([&] {
    if (engine->inbox.empty()) {
      nixl_notifs_t news;
      (void)engine->agent->getNotifs(news);
      for (const auto& [agent, messages] : news) {
        for (const std::string& message : messages) {
          if (engine->inbox.size() < kMaxInbox && message.size() <= capacity) engine->inbox.push_back(message);
        }
      }
    }
    if (engine->inbox.empty()) return MILLRACE_RELAY_PENDING;
    const std::string message = std::move(engine->inbox.front());
    engine->inbox.pop_front();
    if (message.size() > capacity) return MILLRACE_RELAY_PENDING;
    std::memcpy(out, message.data(), message.size());
    *size = message.size();
    return MILLRACE_RELAY_OK;
  });
}

const millrace_relay_plugin kPlugin = {
    MILLRACE_RELAY_ABI,
    sizeof(millrace_relay_plugin),
    "nixl",
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
