// ModelPool: which models of a server are loaded, each as a process, and which requests wait for one.
//
//               acquire()                    ready                 ttl, memory, unload()
//   unloaded ------------> loading ------------------> loaded ------------------------------> unloading --> unloaded
//                             |  it ended                |  it ended
//                             v                          v
//                          failed                     unloaded, and loaded again at the next request
//
// One model loads at a time. Where the memory or the number of loaded models is too small for one more, those go that
// no request uses, the least recently used first; pinned ones stay. Where all are in use, the requests wait. A model
// that did not load is not tried again for kRetryPauseMs: its requests get its error at once. A pinned one is tried
// again then without a request.
//
// A deterministic state machine: tick() is given the time, processes are made by a function.
//
// Invariants: each acquire() ends in one call of its callback; every Use that was handed out is counted until it is
// gone. Thread safety: all functions from any thread, but tick(), shut_down() and interrupt(): from the one that owns
// the processes. Callbacks run on the thread of acquire() or of tick(), without a lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "app/router/model_list.h"
#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kMaxWaitingForModel = 256;  // requests of one model that is not loaded: 429 above
inline constexpr int64_t kRetryPauseMs = 5000;
inline constexpr std::size_t kMaxAliases = 64;  // of one model
inline constexpr double kMemoryFactor = 1.15;   // of a model's weights: buffers, caches and the program itself

// One server process. The thread of tick().
class ModelProcess {
 public:
  enum class State { kLoading, kReady, kEnded };
  virtual ~ModelProcess() = default;  // ends it by force where it is left
  virtual State poll() = 0;
  virtual void terminate() = 0;  // it ends when what it runs is done
  virtual void interrupt() = 0;  // after terminate(): what it runs gets an error now
  virtual std::string socket() const = 0;
  virtual std::string error() const = 0;  // after kEnded: why
};
using StartModel = std::function<Result<std::unique_ptr<ModelProcess>>(const ServedModel&)>;

struct ModelPoolOptions {
  int64_t ttl_ms = 0;                         // a model without requests for so long goes; 0: never
  int most_loaded = 0;                        // 0: no limit but memory
  uint64_t memory_bytes = 0;                  // for all of them; 0: what the system has
  int64_t wait_ms = 600'000;                  // of a request for a model; then it gets an error
  std::function<uint64_t()> available_bytes;  // of the system; not set: without limit
  // As describe_model(): called without a lock, of one whose size was not known before it was loaded. May be empty.
  std::function<void(ServedModel&)> describe;
};

enum class ModelState { kUnloaded, kLoading, kLoaded, kUnloading, kFailed };
const char* model_state_name(ModelState state);

struct ModelStatus {
  std::string name;
  ModelState state = ModelState::kUnloaded;
  std::string socket;  // of a process that is there
  std::string error;   // why it failed last
  double progress = 0;
  std::string message;  // what it does while it loads
  int running = 0, waiting = 0;
  int64_t loads = 0, failures = 0, evictions = 0, expirations = 0, unloads = 0;
  bool pinned = false;
};

class ModelPool {
 public:
  // A model in use; it is not given up before this is gone.
  struct Use {
    std::string socket;
    std::shared_ptr<void> held;
  };
  using OnReady = std::function<void(Result<Use>)>;
  using IsGone = std::function<bool()>;  // the client does not wait any more

  ModelPool(std::vector<ServedModel> models, ModelPoolOptions options, StartModel start);

  // Those that there are now, and what each does, in the same sequence.
  struct Now {
    std::shared_ptr<const std::vector<ServedModel>> models;
    std::vector<ModelStatus> statuses;
  };
  Now now() const;
  std::shared_ptr<const std::vector<ServedModel>> models() const;
  // One more, or one more name of one. kConflict: there is such a name already; kNotFound: no such model;
  // kResourceExhausted: kMaxModels, or so many names of one.
  Status add(ServedModel model);
  Status add_alias(const std::string& model, const std::string& alias);
  // A further name of a model. kNotFound.
  Status remove_alias(const std::string& alias);
  // Models by their names: all of them or none. kNotFound; kConflict: one is loaded, or waited for.
  Status remove(const std::vector<std::string>& models);

  // `model`: its name, of models(). `gone` may be empty. kNotFound, kResourceExhausted (too many wait), kUnavailable
  // (it does not load, or the server stops), kDeadline.
  void acquire(const std::string& model, IsGone gone, OnReady on_ready);
  // Loads it, if it is not, as a request does.
  void load(const std::string& model);
  // What it runs may end. False: it is not loaded.
  bool unload(const std::string& model);
  ModelStatus status(const std::string& model) const;
  void set_progress(const std::string& name, double progress, const std::string& message);
  std::vector<ModelStatus> statuses() const;

  void tick(int64_t now_ms);
  // No more models: what waits gets kUnavailable, all processes are asked to end.
  void shut_down();
  // After shut_down(): what still runs gets an error.
  void interrupt();
  bool has_processes() const;

 private:
  struct Waiter {
    IsGone gone;
    OnReady on_ready;
    int64_t since_ms = -1;  // of the first tick() that saw it
  };
  struct Slot {
    ServedModel model;
    ModelStatus status;
    std::unique_ptr<ModelProcess> process;
    std::deque<Waiter> waiters;
    bool wanted = false;  // by load() or as a pinned one, without a request
    int64_t used_ms = 0, failed_ms = 0;
    bool just_used = false;  // since the last tick()
  };
  using SlotPtr = std::shared_ptr<Slot>;
  using Calls = std::vector<std::function<void()>>;

  SlotPtr slot_of(const std::string& model) const;
  static ModelStatus status_of(const Slot& slot);
  void add_slot(ServedModel model);
  void list_anew();
  Use use_of(const SlotPtr& slot);
  void release(Slot& slot);
  void look_at(const SlotPtr& slot, int64_t now_ms, Calls& calls);
  void loaded(const SlotPtr& slot, int64_t now_ms, Calls& calls);
  void describe(Slot& slot);
  void ended(Slot& slot, int64_t now_ms, Calls& calls);
  void failed(Slot& slot, const Status& answer, const std::string& why, int64_t now_ms, Calls& calls);
  void expire(Slot& slot, int64_t now_ms, Calls& calls);
  void refuse_waiters(Slot& slot, const Status& why, Calls& calls);
  void load_next(int64_t now_ms, Calls& calls);
  bool has_space(const ServedModel& model) const;
  Slot* least_recently_used();
  void give_up(Slot& slot, int64_t& count);

  const ModelPoolOptions options_;
  const StartModel start_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<SlotPtr> slots_;
  std::shared_ptr<const std::vector<ServedModel>> list_;  // their models, anew at each change
  bool shut_down_ = false;
};

}  // namespace millrace
