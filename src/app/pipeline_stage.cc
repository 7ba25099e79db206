// Stages of a pipeline in a process of their own: a child of `serve --pipeline`, or one that a person started on
// another host with `millrace stage --join`.

#include <chrono>
#include <cstdio>

#include "app/backend.h"
#include "app/commands.h"
#include "app/library.h"
#include "app/pipeline_host.h"
#include "app/signals.h"
#include "base/log.h"
#include "base/trace.h"
#include "pipeline/run_dir.h"
#include "pipeline/supervisor.h"

namespace millrace {
namespace {

// Newer than that of any process that had these stages before, without a supervisor that counts.
uint64_t incarnation_of_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count()) << kIncarnationBits;
}

Result<std::vector<PipelineSeat>> seats_of(const std::vector<std::string>& names, const PipelineSpec& spec) {
  std::vector<PipelineSeat> seats;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(PipelineSeat seat, parse_seat(name, spec));
    seats.push_back(std::move(seat));
  }
  if (seats.empty()) return invalid_argument("--stages is empty; wanted names of stages, with commas between");
  return seats;
}

// Until somebody wants the end. OK: an end that was asked for.
Status run_host(PipelineHost& host, const StageOptions& options, const sigset_t& signals) {
  host.start();
  const bool child = options.join.empty();
  while (!host.ended() && !stop_signal(signals) && (!child || parent_alive(options.parent))) {
  }
  const bool by_itself = host.ended();
  host.stop();
  return by_itself ? host.status() : ok_status();
}

Status run_seats(const StageOptions& options, const sigset_t& signals) {
  const Library library = make_library();
  ASSIGN_OR_RETURN(PipelineSpec spec, load_pipeline(options.pipeline, library));
  if (!options.join.empty())
    spec.control = options.join.find("://") == std::string::npos ? "tcp://" + options.join : options.join;
  if (!options.key_file.empty()) spec.key_file = options.key_file;
  ASSIGN_OR_RETURN(const auto seats, seats_of(options.seats, spec));
  ASSIGN_OR_RETURN(const PipelinePlace place, PipelinePlace::make(spec, options.run_dir, options.listen));
  if (!options.join.empty() && !place.over_hosts()) {
    return invalid_argument("{}: no stage has a host; wanted one that says where else stages run", options.pipeline);
  }
  const uint64_t incarnation = options.join.empty() ? options.incarnation << kIncarnationBits : incarnation_of_now();
  ZmqContext zmq;
  ASSIGN_OR_RETURN(auto host, PipelineHost::make(spec, library, place, zmq, seats, incarnation));
  if (!options.join.empty()) {
    std::printf("Millrace %s joins %s with %zu stages of '%s'. Ctrl-C leaves.\n", kVersion, spec.control.c_str(),
                seats.size(), spec.name.c_str());
    std::fflush(stdout);
  }
  return run_host(*host, options, signals);
}

}  // namespace

int run_pipeline_stage(const StageOptions& options) {
  const std::string name = options.process.empty() ? "stage" : options.process;
  log_init(name, log_level_of(options.model.log_level));
  trace::name_process(name);
  const sigset_t signals = block_stop_signals();
  if (options.join.empty() && !become_child(options.parent).ok()) return 1;
  const Status status = run_seats(options, signals);
  if (options.join.empty() && !parent_alive(options.parent)) RunDir::remove(options.run_dir);
  if (status.ok()) return 0;
  print_error(status);
  const bool bad_input = status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound ||
                         status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kPermissionDenied;
  return bad_input ? kExitBadInput : 1;
}

}  // namespace millrace
