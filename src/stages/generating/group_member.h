// GroupMember: this replica as a rank of a trainer's process group. A group is joined on a thread of its own while the
// engine goes on, and may be left at any time: that ends what waits for it.
//
//   begin_join() -> joining --take_joined()--> joined --leave(), or another join--> none
//
// Owner: the worker `generate`. Thread safety: the worker's thread. The destructor leaves the group, and waits for a
// join under way, which it cancels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collective/process_group.h"
#include "stages/weight_plan.h"

namespace millrace {

// Shared by all users of the group: it ends with the last of them.
struct JoinedGroup {
  std::string name;
  std::shared_ptr<collective::CancelSignal> cancel = std::make_shared<collective::CancelSignal>();
  std::unique_ptr<collective::ProcessGroup> group;
};

class GroupMember {
 public:
  // `allowed_hosts`: as collective::AllowedHosts takes it.
  GroupMember(uint32_t replica, std::string allowed_hosts)
      : replica_(replica), allowed_hosts_(std::move(allowed_hosts)) {}
  ~GroupMember();

  // Joins as rank rank_offset + replica, and leaves the group of before. A join under way is cancelled: a trainer that
  // was started again waits for no other.
  void begin_join(uint64_t command, TrainerGroup group, int64_t timeout_ms);
  struct Joined {
    uint64_t command = 0;
    Status status;
  };
  // What has been joined since, or why it was not; each command once. Called after every step.
  std::vector<Joined> take_joined();
  bool busy() const { return thread_.joinable() || !ended_.empty(); }

  // kNotFound: it is in no group of this name.
  Status leave(const std::string& name);
  void leave_any();
  Result<std::shared_ptr<JoinedGroup>> find(const std::string& name) const;

 private:
  struct Wanted {
    uint64_t command = 0;
    TrainerGroup group;
    int64_t timeout_ms = 0;
  };
  void start(Wanted wanted);

  const uint32_t replica_;
  const std::string allowed_hosts_;
  std::shared_ptr<JoinedGroup> group_;  // null: in none
  std::thread thread_;                  // joinable: a group is being joined, or was and not taken
  uint64_t command_ = 0;
  std::optional<Wanted> next_;  // when the one that is being joined has ended
  std::shared_ptr<JoinedGroup> joining_;
  Status joined_;  // the thread's, until done_
  std::atomic<bool> done_{false};
  std::vector<Joined> ended_;
};

}  // namespace millrace
