// ModelRoutes: the HTTP side of a server of several models. A request that names a model goes on to that model's
// server, once it is loaded; the rest (lists, health, metrics, loading by hand) is answered here.
//
// Who may call what is decided here, since the servers behind ask for no key. So only what stands in a list is sent on.
//
// Owner: the router; outlives the server's threads. Thread safety: add() before the server starts; handlers run on the
// server's threads.
#pragma once

#include <string>
#include <utility>

#include "app/router/model_pool.h"
#include "http/forwarder.h"
#include "http/server.h"

namespace millrace {

inline constexpr int kMetricsTimeoutMs = 5000;       // of one model's server
inline constexpr std::size_t kMaxNamesInError = 16;  // of models

struct ModelRoutesOptions {
  std::string version;
  bool public_models = false;
  bool require_model = false;  // a POST without a model's name is refused
  bool web = true;
};

class ModelRoutes {
 public:
  ModelRoutes(ModelRoutesOptions options, ModelPool& pool, http::Forwarder& forwarder, http::Server& server)
      : options_(std::move(options)), pool_(pool), forwarder_(forwarder), server_(server) {}

  void add();

 private:
  using Method = void (ModelRoutes::*)(const http::RequestPtr&, const http::ResponderPtr&);
  void add_local(const char* method, const char* pattern, http::Access access, Method handle);
  void add_forwarded(const char* method, const std::string& pattern, http::Access access, bool require_json);
  void add_lists();

  void forward(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void look(const ServedModel& model, const http::RequestPtr& request, const http::ResponderPtr& responder,
            std::string target);
  void list(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void describe(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void load(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void unload(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void ready(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void refuse_realtime(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void metrics(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void tags(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void running(const http::RequestPtr& request, const http::ResponderPtr& responder);
  void hello(const http::RequestPtr& request, const http::ResponderPtr& responder);

  Result<ServedModel> model_of(const http::Request& request) const;
  Result<ServedModel> named(const std::string& name) const;

  const ModelRoutesOptions options_;
  ModelPool& pool_;
  http::Forwarder& forwarder_;
  http::Server& server_;
};

}  // namespace millrace
