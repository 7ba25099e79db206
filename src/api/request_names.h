// RequestNames: the requests that are under way, by the names that clients know them by, so that others than
// their client can abort them.
//
// A name means one request or, for a batch, several choices of it. Names match as a whole, never by a prefix: with
// prefixes, one client's abort reaches requests of others.
//
// Owned by ApiState. Thread safety: all functions from any thread; no lock is held while a caller's code runs.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace millrace::api {

class Reply;

class RequestNames {
 public:
  struct Name {
    std::string text;
    std::size_t first = 0, count = 1;  // the choices that it means
    std::string prompt = {};           // how it begins, of those that came while shows_prompts()
  };

  // Whether a client is shown how prompts begin: else names need none.
  void show_prompts(bool shown) { shows_prompts_.store(shown, std::memory_order_relaxed); }
  bool shows_prompts() const { return shows_prompts_.load(std::memory_order_relaxed); }

  // kConflict, and nothing is added, where one of the names is taken. Names that repeat inside `names` count once.
  Status add(const std::vector<Name>& names, const std::shared_ptr<Reply>& reply);
  void remove(const std::vector<Name>& names);

  // Ends the choices that `name` means with the event of an abort. How many were still running.
  std::size_t abort(const std::string& name);
  std::size_t abort_all();
  std::size_t size() const;  // names

  // At most `most` names, sorted, each with the engine's ids of its choices that still run.
  struct Listed {
    std::string name;
    std::vector<ReqId> ids;
    std::string prompt;  // "": not known
  };
  std::vector<Listed> list(std::size_t most) const;

 private:
  struct Target {
    std::weak_ptr<Reply> reply;
    std::size_t first = 0, count = 1;
    std::string prompt;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Target> names_;
  std::atomic<bool> shows_prompts_{false};
};

}  // namespace millrace::api
