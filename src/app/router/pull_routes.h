// PullRoutes: Ollama's routes that change which models a router has: /api/pull, /api/copy and /api/delete, where the
// operator has allowed it (--allow-pull). Those of its own files (/api/create, /api/push, /api/blobs) are not served.
//
// A pull runs on a thread of its own and ends with its client; what has arrived is kept, and the next one goes on from
// there. A copy is one more name of a model, for as long as the server runs.
//
// Owner: the router; outlives the server's threads. Thread safety: add() before the server starts; handlers run on the
// server's threads; stop() on the main thread.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "app/router/model_pool.h"
#include "http/server.h"
#include "hub/reference.h"
#include "hub/settings.h"

namespace millrace {

inline constexpr std::size_t kMaxPulls = 2;            // at a time: 429 above
inline constexpr std::size_t kMaxCopyNameBytes = 256;  // of a name that a client gives
inline constexpr int kPullEventMs = 250;               // between two events of a pull

struct PullRoutesOptions {
  bool allowed = false;
  int context_length = 0;  // as in ModelListOptions
};

class PullRoutes {
 public:
  PullRoutes(PullRoutesOptions options, ModelPool& pool, http::Server& server)
      : options_(options), pool_(pool), server_(server) {}
  ~PullRoutes() { stop(); }

  void add();
  // What is pulled breaks off.
  void stop();

 private:
  using Method = Status (PullRoutes::*)(const http::Request&, const http::ResponderPtr&);
  struct Job {
    hub::HubSettings settings;
    hub::ModelReference reference;
    std::string asked;  // the name that the client has for it
    bool stream = true;
    http::ResponderPtr responder;
    std::atomic<bool> done{false};
    std::thread thread{};
  };

  void add_route(const char* method, const char* pattern, Method handle);
  Status pull(const http::Request& request, const http::ResponderPtr& responder);
  Status copy(const http::Request& request, const http::ResponderPtr& responder);
  Status remove(const http::Request& request, const http::ResponderPtr& responder);
  Status unserved(const http::Request& request, const http::ResponderPtr& responder);
  void run(Job& job);
  Status take(Job& job, const std::string& name);

  const PullRoutesOptions options_;
  ModelPool& pool_;
  http::Server& server_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::list<Job> jobs_;  // guarded by mutex_
};

}  // namespace millrace
