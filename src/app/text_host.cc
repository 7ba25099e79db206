#include "app/text_host.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "app/backend.h"
#include "app/commands.h"
#include "app/loading.h"
#include "app/text_identity.h"
#include "base/log.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

constexpr int64_t kStillMs = 10'000;  // between two words about stages that do not end

// Each scheduler of a child has the share of one of all; those of a process that joined divide what that one has.
ModelOptions share_for(const TextSeat& seat, const std::vector<const TextSeat*>& seats, const TextPlan& plan,
                       const StageOptions& options) {
  if (options.parent != 0) return share_of(options.model, seat.replica, plan.schedulers());
  int index = 0, count = 0;
  for (const TextSeat* one : seats) {
    if (one == &seat) index = count;
    if (one->scheduler) ++count;
  }
  return share_of(options.model, index, count);
}

std::string names_of(const std::vector<const TextSeat*>& seats) {
  std::string out;
  for (const TextSeat* seat : seats) out += (out.empty() ? "" : ", ") + seat->name;
  return out;
}

Result<std::vector<const TextSeat*>> find_seats(PipelineSpec spec, const TextPlan& plan, const StageOptions& options) {
  for (StageSpec& stage : spec.stages) {
    if (stage.name == spec.entry) stage.replicas = plan.schedulers();
  }
  ASSIGN_OR_RETURN(const auto wanted, parse_seats(options.seats, spec));
  std::vector<const TextSeat*> out;
  for (const PipelineSeat& one : wanted) {
    const TextSeat* seat = plan.find(one.stage, one.replica);
    CHECK(seat != nullptr);  // parse_seats() has looked
    if (options.parent == 0 && !seat->remote()) {
      return invalid_argument("{}: stage '{}' has no host, so the leader runs it itself; wanted --stages with a host",
                              options.pipeline, seat->stage);
    }
    out.push_back(seat);
  }
  return out;
}

// Waits for the end of all threads, which a signal may hurry. True: the process is to end, now at the latest.
bool end_all(TextHost& host, const sigset_t& signals, bool wanted, EndWatch& end) {
  host.request_stop();
  int64_t word_ms = monotonic_ms() + kStillMs;
  for (bool begun = false; !host.finished();) {
    if (wanted && !std::exchange(begun, true)) end.begin(kStopGraceMs);
    if (begun) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kSignalTickMs));  // the signals are the watch's now
      continue;
    }
    wanted = stop_signal(signals);
    if (monotonic_ms() < word_ms) continue;
    word_ms += kStillMs;
    LOG_WARNING("waits for its stages to end, before it joins again");
  }
  return wanted;
}

struct Outcome {
  bool again = false;  // another incarnation may join
  Status status;
};

Outcome wait_for_end(TextHost& host, const StageOptions& options, const sigset_t& signals) {
  const bool child = options.parent != 0;
  while (true) {
    if (stop_signal(signals) || (child && !parent_alive(options.parent))) return {};
    const TextMember* member = host.ended();
    if (member == nullptr) continue;
    if (member->ended() == TextMember::End::kShutdown) {
      LOG_INFO("the leader ends");
      return {};
    }
    return {.again = member->ended() == TextMember::End::kOver && !child, .status = host.why(*member)};
  }
}

}  // namespace

Result<std::unique_ptr<TextHost>> TextHost::make(const TextPlan& plan, const std::vector<const TextSeat*>& seats,
                                                 const StageOptions& options, const TextSide& side, uint64_t identity,
                                                 uint64_t incarnation, const PipelinePlace& place, ZmqContext& zmq) {
  std::unique_ptr<TextHost> host(new TextHost());
  const std::vector<int32_t>& eos = options.parent != 0 ? options.eos_token_ids : side.eos_token_ids;
  for (const TextSeat* seat : seats) {
    TextMemberPlan member{.seat = seat, .incarnation = incarnation, .identity = identity};
    if (seat->scheduler) {
      member.speaks_to = plan.detokenizer().stage;
      member.make_stage = [&, seat, share = share_for(*seat, seats, plan, options)](
                              std::unique_ptr<Inbox> inbox,
                              std::shared_ptr<Outbox> out) -> Result<std::unique_ptr<Stage>> {
        const SchedulerSeat where{.name = seat->name, .replica = static_cast<uint32_t>(seat->replica)};
        ASSIGN_OR_RETURN(auto stage,
                         make_scheduler_stage(share, where, eos, zmq, std::move(inbox), std::move(out), incarnation));
        return std::unique_ptr<Stage>(std::move(stage));
      };
    } else {
      member.speaks_to = kCoordinatorStage;
      member.make_stage = [&](std::unique_ptr<Inbox> inbox,
                              std::shared_ptr<Outbox> out) -> Result<std::unique_ptr<Stage>> {
        return std::unique_ptr<Stage>(
            std::make_unique<DetokenizerStage>(side.tokenizer, std::move(inbox), std::move(out), incarnation));
      };
    }
    ASSIGN_OR_RETURN(auto made, TextMember::make(std::move(member), place, zmq));
    host->members_.push_back(std::move(made));
  }
  return host;
}

void TextHost::start() {
  for (auto& member : members_) member->start();
}

const TextMember* TextHost::ended() const {
  for (const auto& member : members_) {
    if (member->ended() != TextMember::End::kNot) return member.get();
  }
  return nullptr;
}

Status TextHost::why(const TextMember& member) const {
  const auto* scheduler = dynamic_cast<const SchedulerStage*>(&member.stage());
  const bool by_itself = member.ended() == TextMember::End::kFailed;
  if (by_itself && scheduler != nullptr && !scheduler->load_status().ok()) {
    return scheduler->load_status();
  }
  return member.status();
}

void TextHost::request_stop() {
  for (auto& member : members_) member->request_stop();
}

bool TextHost::finished() const {
  for (const auto& member : members_) {
    if (!member->finished()) return false;
  }
  return true;
}

Status run_text_host(const PipelineSpec& spec, const StageOptions& options, const PipelinePlace& place,
                     const sigset_t& signals, EndWatch& end) {
  const bool child = options.parent != 0;
  if (options.model.model.empty()) {
    return invalid_argument("--model is missing; wanted this host's copy of the model that the leader serves");
  }
  ServeOptions serve{.model = options.model};
  serve.dp = 1;
  RETURN_IF_ERROR(validate(serve));
  // A child knows of --dp, which the file does not say.
  const int dp = child && spec.find(spec.entry)->host.empty() ? options.replicas : 0;
  ASSIGN_OR_RETURN(const TextPlan plan, plan_text(spec, options.pipeline, dp, false));
  ASSIGN_OR_RETURN(const auto seats, find_seats(spec, plan, options));
  ASSIGN_OR_RETURN(const TextSide side, load_text_side(serve));
  const bool generates = std::any_of(seats.begin(), seats.end(), [](const TextSeat* seat) { return seat->scheduler; });
  ASSIGN_OR_RETURN(const TextIdentity identity, identify(spec, options.model, generates));
  ZmqContext zmq;
  if (!child) {
    std::printf("Millrace %s joins %s as %s of '%s'. Ctrl-C leaves.\n", kVersion, place.coordinator().c_str(),
                names_of(seats).c_str(), spec.name.c_str());
    std::fflush(stdout);
  }
  uint64_t incarnation = child ? options.incarnation << kIncarnationBits : incarnation_of_now();
  while (true) {
    ASSIGN_OR_RETURN(auto host, TextHost::make(plan, seats, options, side, identity.packed(), incarnation, place, zmq));
    host->start();
    const Outcome outcome = wait_for_end(*host, options, signals);
    const bool over = end_all(*host, signals, !outcome.again, end);
    if (over) return outcome.again ? ok_status() : outcome.status;
    LOG_WARNING("joins again: {}", outcome.status.message());
    incarnation = std::max(incarnation + 1, incarnation_of_now());  // newer than of who took the place meanwhile
  }
}

}  // namespace millrace
