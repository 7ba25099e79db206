// Aborts: requests that ended before their stages were done with them. An abort is open until each replica that may
// hold a part of the request has acknowledged it or is lost. It is sent to these again every kAbortRetryMs, at most
// kMaxAbortTries times.
//
// A replica that joins while an abort is open is asked too: another stage may not have handled the abort yet and still
// send it a part of the request.
//
// Owner: the coordinator. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "pipeline/placement.h"

namespace millrace {

inline constexpr int64_t kAbortRetryMs = 500;
inline constexpr int kMaxAbortTries = 240;               // then the stage is at fault, which is logged
inline constexpr std::size_t kOpenAbortsPerRequest = 4;  // open aborts at most: so many for each live request allowed

class Aborts {
 public:
  using Send = std::function<void(std::size_t slot, ReqId id)>;  // may lose the message: it is sent again
  struct GivenUp {
    ReqId id;
    std::size_t slot = 0;  // one that never acknowledged
  };

  Aborts(std::size_t max_open, Send send);

  // kResourceExhausted: so many are open that no request may begin.
  Status check_capacity() const;
  // `asked`: the replicas of the route that are members now.
  void open(ReqId id, const Placement::Route& route, std::vector<std::size_t> asked, int64_t now_ms);
  void on_ack(ReqId id, std::size_t slot);
  void on_joined(std::size_t slot);
  void on_lost(std::size_t slot);
  // Sends again what is due.
  std::vector<GivenUp> tick(int64_t now_ms);

  bool is_open(ReqId id) const { return aborts_.contains(id); }
  std::size_t size() const { return aborts_.size(); }
  std::size_t awaited_acks() const;
  uint64_t given_up() const { return given_up_; }

 private:
  struct Open {
    Placement::Route route;             // of the request
    std::vector<std::size_t> awaiting;  // slots that have not acknowledged
    int64_t next_ms = 0;
    int tries = 0;
  };
  void send(ReqId id, Open& open, int64_t now_ms);

  const std::size_t max_open_;
  const Send send_;
  std::unordered_map<ReqId, Open> aborts_;
  uint64_t given_up_ = 0;
};

}  // namespace millrace
