// TextLink: the door through which one stage of a text pipeline over several hosts says everything: to the next stage,
// wherever that is now, and its heartbeats to the leader as well, which holds the stage's lease by them.
//
// The next stage may be away: then what the stage has to say is refused, and kept by the stage, as the outboxes of
// mailbox.h do; a heartbeat is never kept, because the next one says more. The next stage is reached by one connection
// (OutboxOptions::once): so what it hears has no gap, and whether the connection ended is known.
//
// Thread safety: all functions from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "control/mailbox.h"

namespace millrace {

inline constexpr int64_t kRepeatBeatMs = 400;   // a stage whose heartbeat waits behind other news: it is said for it
inline constexpr int64_t kStageAliveMs = 1000;  // so long after its last word a stage counts as alive

class TextLink : public Outbox {
 public:
  // `leader` gets the heartbeats of `stage`, by its name for people; what passes through of others' is not its.
  TextLink(std::string stage, std::shared_ptr<Outbox> leader);

  Status send(wire::Message& message) override;
  // Whom the stage speaks to from now on; null: nobody.
  void aim(std::shared_ptr<Outbox> to);
  // The connection to the one that it was aimed at has ended.
  bool lost() const override;

  // Says the last heartbeat again, where the stage lives and cannot say one itself because something waits before it.
  void repeat_beat();
  // When a heartbeat last left for the leader, on the clock of monotonic_ms(); at first, when this was made.
  int64_t beat_left_ms() const;

 private:
  void beat(const wire::StageStatus& status, int64_t now_ms);

  const std::string stage_;   // empty: whichever
  mutable std::mutex mutex_;  // guards what follows
  std::shared_ptr<Outbox> leader_, to_;
  std::optional<wire::StageStatus> last_;
  int64_t said_ms_ = 0;  // the stage spoke, heard or not
  int64_t beat_ms_ = 0;  // a heartbeat was given to leader_, which may have refused it
  int64_t left_ms_ = 0;
};

}  // namespace millrace
