// Membership: which replicas are in the pipeline now. Stages register with the coordinator, hold a lease that their
// heartbeats renew, and lose it when they are silent; every change makes a new table of peers for all, numbered by an
// epoch.
//
// A slot is for one replica of one stage. Its holders are distinguished by an incarnation, which only grows,
// inside one session of the coordinator. A process that lost its lease and does not know it yet is fenced: its messages
// are ignored and counted, and the answer is that it must register again with a newer incarnation.
//
// All replicas of a stage must give the same answers: the checksums of the first one's weights and model files hold for
// the others, and for those that are started again. One that loaded other files is a member and does not serve.
//
// Nothing here waits, sends or looks at a clock: handle() and tick() are given the time, and leave events and messages
// for the coordinator to take. After a long gap between two ticks this process itself did not run: the gap is added to
// all leases.
//
// Owner: the coordinator. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "pipeline/spec.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr uint64_t kStartVersion = 1;  // of the weights that a stage loads when it starts
inline constexpr int64_t kLeaseMs = 2000;
inline constexpr int64_t kSilentMs = 2000;  // without a heartbeat: the stage serves nothing new, whatever its lease
// That a stage may call itself stalled before it counts as lost. With its own time of 1500 ms, a heartbeat and a tick
// that is less than two seconds.
inline constexpr int64_t kStallGraceMs = 200;
inline constexpr int64_t kPeersRepeatMs = 1000;  // the table is repeated so often: the control plane may lose it
inline constexpr std::size_t kMaxLoggedRefusals = 64;
inline constexpr int64_t kFenceNoticeMs = 250;  // between two notices to one fenced process

struct MembershipOptions {
  uint64_t session = 0;                                             // of the coordinator; another one after each start
  uint64_t spec_hash = 0;                                           // what a stage must have been started with
  std::function<Status(uint64_t theirs, uint64_t ours)> same_spec;  // kConflict: what differs. Empty: they are equal
  int64_t lease_ms = kLeaseMs;
  int64_t stall_grace_ms = kStallGraceMs;  // 0: a stage may call itself stalled for ever
  wire::Peer self;  // the coordinator as its stages know it; in every table, unless its `stage` is empty
};

// What the replicas of a stage must serve.
struct RequiredWeights {
  uint64_t version = 0;   // 0: any
  uint64_t checksum = 0;  // 0: that of the first replica which serves the version

  bool fit(const wire::StageStatus& status) const {
    return status.weight_version == version && (checksum == 0 || status.weights_checksum == checksum);
  }
};

// What the replicas of the stages with weights have.
struct KnownWeights {
  uint64_t required = 0;  // version; 0: not known yet
  uint64_t newest = 0;    // version of any of them
};

struct ReplicaView {
  std::string stage;
  uint32_t replica = 0;
  std::size_t stage_index = 0;  // in the spec
  std::string name;             // "think", or "think-1" where there are several
  bool optional = false;        // requests are served without it: it computes prompts for another stage
  bool local = true;            // restarted by the supervisor when it is lost; a remote one is awaited
  std::string host;             // the remote one's, as the file calls it
  bool up = false;              // holds a lease
  wire::Peer peer;              // of the last holder
  std::string reply_to;         // where it is reached from here
  uint64_t newest = 0;          // the largest incarnation that was ever welcome
  uint64_t expected = 0;        // the only incarnation that may register now; 0: any newer one
  wire::StageStatus status;     // the last one of this holder
  int64_t last_seen_ms = 0;
  int64_t since_ms = 0;  // of the present state
  int64_t fence_sent_ms = 0;
  std::string lost_why;          // where it is not up and once was
  uint64_t lost_epoch = 0;       // of the table that first had its last holder as down; 0: none was lost yet
  bool silent = false;           // no heartbeat for kSilentMs
  bool reachable = true;         // a socket to it could be opened
  bool beaten = false;           // this holder has sent a heartbeat: it knows that it is in
  RequiredWeights weights;       // of a stage that has some
  RequiredWeights next_weights;  // while a switch is under way: these may serve too. Version 0: none
  uint64_t text_checksum = 0;    // that the stage's replicas must have, the first one's; 0: not known yet
  uint64_t frozen_checksum = 0;  // the same
  std::string weights_note;      // what is done about its other weights

  bool has_right_weights() const {
    return weights.version == 0 || weights.fit(status) || (next_weights.version != 0 && next_weights.fit(status));
  }
  bool has_right_text() const { return text_checksum == 0 || status.text_checksum == text_checksum; }
  bool has_right_frozen() const { return frozen_checksum == 0 || status.frozen_checksum == frozen_checksum; }
  bool is_ready() const { return up && reachable && !silent && status.state == wire::StageState::kReady; }
  bool serves() const { return is_ready() && has_right_weights() && has_right_text() && has_right_frozen(); }
  // It works, and has another version of the weights than the one that must serve.
  bool is_stale() const { return is_ready() && !has_right_weights() && status.weight_version != weights.version; }
};

struct StaleReplica {
  std::string stage;
  uint32_t replica = 0;
  RequiredWeights wanted;
};

struct MembershipEvent {
  enum class Kind : uint8_t { kJoined, kLost };
  Kind kind = Kind::kJoined;
  std::size_t slot = 0;
  uint64_t incarnation = 0;
  std::string reason;  // lost: why
  bool anew = false;   // lost: its process goes on and joins again, as another incarnation
};

// A message to the endpoint `reply_to`; to the holder of a slot where one is named.
struct MembershipMessage {
  std::optional<std::size_t> slot;
  std::string reply_to;
  wire::Message message;
};

struct MembershipCounters {
  uint64_t fenced = 0;   // messages of a fenced incarnation, or of another session
  uint64_t unknown = 0;  // messages of a stage that the spec does not have
  uint64_t refused = 0;  // registrations
};

class Membership {
 public:
  Membership(const PipelineSpec& spec, MembershipOptions options, int64_t now_ms);

  void handle(const wire::Register& message, int64_t now_ms);
  void handle(const wire::StageStatus& status, int64_t now_ms);
  // Leases that ran out, stages that stand still, the table again.
  void tick(int64_t now_ms);

  // Replicas of these stages with other weights do not serve. Without a call, the weights of the first ready replica of
  // a stage are those that the others must have.
  void require_weights(const std::vector<std::string>& stages, RequiredWeights weights);
  // These may serve too until the next call of either; version 0: no longer.
  void accept_weights(const std::vector<std::string>& stages, RequiredWeights next);
  // A replica has replied that it serves this version, before its heartbeat shows it.
  void set_weights(std::size_t slot, uint64_t version, uint64_t checksum) {
    CHECK(slot < replicas_.size());
    replicas_[slot].status.weight_version = version;
    replicas_[slot].status.weights_checksum = checksum;
  }
  // For people: what is done about a replica's other weights.
  void note_weights(const std::string& stage, uint32_t replica, std::string note);
  void set_reachable(std::size_t slot, bool reachable) {
    CHECK(slot < replicas_.size());
    replicas_[slot].reachable = reachable;
  }
  // The supervisor starts one: no other process may take the slot now.
  void expect(const std::string& stage, uint32_t replica, uint64_t incarnation);
  // The supervisor saw it die. Of another incarnation than the present one, this is an old report.
  void down(const std::string& stage, uint32_t replica, uint64_t incarnation, const std::string& reason,
            int64_t now_ms);

  // The slot of a present member, as its index; nullopt: the sender is none, and is counted.
  std::optional<std::size_t> current_slot(const wire::Origin& from);

  std::vector<MembershipEvent> take_events();
  std::vector<MembershipMessage> take_messages();

  const std::vector<ReplicaView>& replicas() const { return replicas_; }
  std::optional<std::size_t> find(const std::string& stage, uint32_t replica) const;
  // Those that could serve and have another version of the weights than they must.
  KnownWeights known_weights() const;
  std::vector<StaleReplica> stale() const;
  // Why a replica does not serve, without its name; empty: it does.
  std::string why_not_serving(const ReplicaView& member) const;
  // Why no replica of a stage serves, in the words for the first one, with its name; empty: one does.
  std::string why_stage_missing(std::size_t stage_index) const;
  wire::Origin self() const { return {.session = options_.session}; }
  uint64_t epoch() const { return epoch_; }
  const MembershipCounters& counters() const { return counters_; }

 private:
  Status may_register(const wire::Register& message) const;
  void lose(std::size_t slot, const std::string& reason, int64_t now_ms, bool anew = false);
  void welcome(std::size_t slot, const std::string& reply_to, uint64_t incarnation, const Status& status);
  void publish_serving(int64_t now_ms);
  void new_table(int64_t now_ms);
  void send_table(std::optional<std::size_t> only = std::nullopt);
  void learn_checksums(const ReplicaView& first);

  MembershipOptions options_;
  std::vector<ReplicaView> replicas_;
  std::set<std::string> logged_refusals_;  // refusals that were logged; kMaxLoggedRefusals at most
  uint64_t epoch_ = 0;
  int64_t ticked_ms_ = 0;
  int64_t table_sent_ms_ = 0;
  MembershipCounters counters_;
  std::vector<MembershipEvent> events_;
  std::vector<MembershipMessage> messages_;
};

}  // namespace millrace
