#include "app/range_processes.h"

#include <unistd.h>

#include <utility>

#include "app/held_mailbox.h"
#include "app/options.h"

namespace millrace {
namespace {

std::string name_of(uint32_t range) { return fmt::format("range-{}", range); }

}  // namespace

Result<ChainLinks> range_links(const std::string& run_dir, uint32_t index, uint32_t ranges) {
  auto zmq = std::make_shared<ZmqContext>();
  ChainLinks links;
  ASSIGN_OR_RETURN(auto inbox, bind_inbox(*zmq, RunDir::ipc_endpoint(run_dir, name_of(index))));
  ASSIGN_OR_RETURN(auto next, connect_outbox(*zmq, RunDir::ipc_endpoint(run_dir, name_of((index + 1) % ranges)),
                                             BeforeConnected::kRefuse));
  links.inbox = std::make_unique<HeldInbox>(zmq, std::move(inbox));
  links.next = std::make_shared<HeldOutbox>(zmq, std::move(next));
  return links;
}

Result<std::shared_ptr<Outbox>> first_range_outbox(const std::string& run_dir) {
  auto zmq = std::make_shared<ZmqContext>();
  ASSIGN_OR_RETURN(auto outbox,
                   connect_outbox(*zmq, RunDir::ipc_endpoint(run_dir, name_of(0)), BeforeConnected::kRefuse));
  return std::shared_ptr<Outbox>(std::make_shared<HeldOutbox>(std::move(zmq), std::move(outbox)));
}

Result<ChainLinks> RangeProcesses::open(const ModelOptions& options, uint32_t ranges) {
  ASSIGN_OR_RETURN(RunDir run_dir, RunDir::create());
  ASSIGN_OR_RETURN(ChainLinks links, range_links(run_dir.path(), 0, ranges));
  links.peers.reset(new RangeProcesses(std::move(run_dir), options, ranges));
  return links;
}

RangeProcesses::RangeProcesses(RunDir run_dir, const ModelOptions& options, uint32_t ranges)
    : run_dir_(std::move(run_dir)) {
  std::vector<ChildSpec> children;
  for (uint32_t i = 1; i < ranges; ++i) {
    const RangeOptions range{
        .run_dir = run_dir_.path(), .index = static_cast<int>(i), .parent = ::getpid(), .model = options};
    children.push_back({.name = name_of(i), .arguments = [range](uint64_t) { return range_arguments(range); }});
  }
  const auto index_of = [](const std::string& name) {
    return static_cast<uint32_t>(std::stoul(name.substr(name.rfind('-') + 1)));
  };
  supervisor_ = std::make_unique<Supervisor>(
      std::move(children), SupervisorEvents{.starting =
                                                [this](const std::string& name, uint64_t incarnation) {
                                                  const std::lock_guard lock(mutex_);
                                                  incarnations_[name] = incarnation;
                                                },
                                            .died =
                                                [this, index_of](const std::string& name, const std::string& how) {
                                                  report({index_of(name), how, false});
                                                },
                                            .gave_up =
                                                [this, index_of](const std::string& name) {
                                                  report({index_of(name), "bad input", true});
                                                }});
  supervisor_->start();
}

RangeProcesses::~RangeProcesses() {
  {
    const std::lock_guard lock(mutex_);
    lost_ = nullptr;
  }
  supervisor_->stop(kChildGraceMs);
}

void RangeProcesses::on_lost(Lost lost) {
  std::deque<Death> deaths;
  {
    const std::lock_guard lock(mutex_);
    lost_ = lost;
    deaths.swap(unheard_);
  }
  for (const Death& death : deaths) lost(death.range, death.how, death.final);
}

void RangeProcesses::restart(uint32_t range) {
  uint64_t incarnation = 0;
  {
    const std::lock_guard lock(mutex_);
    incarnation = incarnations_[name_of(range)];
  }
  supervisor_->kill_hung(name_of(range), incarnation);
}

// Under the lock, so that no callback runs after the destructor has begun.
void RangeProcesses::report(Death death) {
  const std::lock_guard lock(mutex_);
  if (lost_) {
    lost_(death.range, death.how, death.final);
  } else {
    unheard_.push_back(std::move(death));
  }
}

}  // namespace millrace
