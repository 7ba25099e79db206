#include "app/pipeline_host.h"

#include <algorithm>
#include <charconv>

namespace millrace {

Result<PipelineSeat> parse_seat(const std::string& text, const PipelineSpec& spec) {
  const std::size_t colon = text.find(':');
  PipelineSeat seat{.stage = text.substr(0, colon)};
  const StageSpec* stage = spec.find(seat.stage);
  if (stage == nullptr) {
    return invalid_argument("there is no stage '{}'; wanted one of the pipeline '{}'", seat.stage.substr(0, 64),
                            spec.name);
  }
  if (colon == std::string::npos) return seat;
  const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(begin, end, seat.replica);
  if (code != std::errc() || rest != end || seat.replica >= static_cast<uint32_t>(stage->replicas)) {
    return invalid_argument("replica '{}' of stage '{}'; wanted 0 to {}", std::string(begin, end).substr(0, 64),
                            seat.stage, stage->replicas - 1);
  }
  return seat;
}

Result<std::vector<PipelineSeat>> parse_seats(const std::vector<std::string>& texts, const PipelineSpec& spec) {
  std::vector<PipelineSeat> seats;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(PipelineSeat seat, parse_seat(text, spec));
    for (const PipelineSeat& other : seats) {
      if (other.stage == seat.stage && other.replica == seat.replica) {
        return invalid_argument("--stages names '{}' twice; wanted it once", text.substr(0, 64));
      }
    }
    seats.push_back(std::move(seat));
  }
  if (seats.empty()) return invalid_argument("--stages is empty; wanted names of stages, with commas between");
  return seats;
}

// Which of how many replicas of its stage that share this machine.
struct PipelineHost::Share {
  uint32_t nth = 0;
  int of = 1;
};

Result<std::unique_ptr<PipelineHost>> PipelineHost::make(const PipelineSpec& spec, uint64_t spec_hash,
                                                         const Library& library, const PipelinePlace& place,
                                                         ZmqContext& zmq, const std::vector<PipelineSeat>& seats,
                                                         uint64_t incarnation) {
  std::unique_ptr<PipelineHost> host(new PipelineHost());
  for (const PipelineSeat& seat : seats) {
    // Those of the server's host are all there; of others, a process that joined knows its own.
    const StageSpec& stage = *spec.find(seat.stage);
    Share share{.nth = seat.replica, .of = stage.replicas};
    if (!stage.host.empty()) {
      share = {.nth = 0, .of = 0};
      for (const PipelineSeat& other : seats) {
        if (other.stage != seat.stage) continue;
        if (other.replica == seat.replica) share.nth = static_cast<uint32_t>(share.of);
        ++share.of;
      }
    }
    RETURN_IF_ERROR(host->add(spec, spec_hash, library, place, zmq, seat, share, incarnation)
                        .with_prefix(fmt::format("stage '{}'", seat.stage)));
  }
  return host;
}

Status PipelineHost::add(const PipelineSpec& spec, uint64_t spec_hash, const Library& library,
                         const PipelinePlace& place, ZmqContext& zmq, const PipelineSeat& seat, const Share& share,
                         uint64_t incarnation) {
  ASSIGN_OR_RETURN(StageLoopConfig config, make_loop_config(spec.stages, spec.entry, seat.stage));
  StageLoopStageDoors doors;
  ASSIGN_OR_RETURN(doors.inbox, bind_inbox(zmq, place.inbox(seat.stage, seat.replica, incarnation), place.key()));
  // What waits for a leader that is away would be old when it comes; over ipc it is never away while we are here.
  const auto policy = place.over_hosts() ? BeforeConnected::kRefuse : BeforeConnected::kKeep;
  ASSIGN_OR_RETURN(doors.coordinator, place.connect(zmq, place.coordinator(), {.policy = policy}));
  ASSIGN_OR_RETURN(doors.relays, place.relays(config.spec.relay));
  ASSIGN_OR_RETURN(doors.aborts, subscribe_aborts(zmq, place.aborts(), doors.inbox->waker(), place.key()));
  doors.connect = [&place, &zmq](const wire::Peer& peer) { return place.connect(zmq, peer.endpoint); };
  config.self = place.self(seat.stage, seat.replica, incarnation);
  config.self.endpoint = doors.inbox->endpoint();
  config.reply_to = config.self.endpoint;
  config.coordinator.stage = kCoordinatorStage;  // the table of peers says the rest
  config.spec_hash = spec_hash;
  config.nth = share.nth, config.of = share.of;
  // One that froze may find that another process has its place, with an incarnation of its own start: it waits then.
  if (!config.spec.host.empty()) {
    doors.next_incarnation = [](uint64_t last) { return std::max(last + 1, incarnation_of_now()); };
  }
  relays_.push_back(doors.relays);
  ASSIGN_OR_RETURN(auto stage, StageLoopStage::make(std::move(config), library, std::move(doors)));
  stages_.push_back(std::move(stage));
  return ok_status();
}

PipelineHost::~PipelineHost() { stop(); }

void PipelineHost::start() {
  for (auto& stage : stages_) {
    threads_.emplace_back([this, stage = stage.get()] {
      stage->run();
      ended_.store(true);
    });
  }
}

Status PipelineHost::status() const {
  for (const auto& stage : stages_) {
    if (!stage->end_status().ok()) return stage->end_status();
  }
  return ok_status();
}

void PipelineHost::leave() {
  for (auto& stage : stages_) stage->request_leave();
}

void PipelineHost::stop() {
  for (auto& stage : stages_) stage->request_stop();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  for (loop::Relays& relays : relays_) {
    for (auto& [name, relay] : relays) relay->close();
  }
}

}  // namespace millrace
