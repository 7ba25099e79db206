// What the parts of a pipeline must be together: names that exist, a graph without cycles where everything is reached,
// processes and hosts that can be. What may only follow from a reported error is left out: a stage that cannot be read
// is not checked, and names are not where two stages have one.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <utility>

#include "base/nearest.h"
#include "control/endpoint.h"
#include "pipeline/chain_spec.h"
#include "pipeline/spec_errors.h"
#include "wire/limits.h"
#include "wire/pipeline_messages.h"

namespace millrace {
namespace {

constexpr std::string_view kRelays[] = {"auto", "local", "shm", "tcp", "ucx", "nccl", "nixl", "mooncake"};

class Checker {
 public:
  Checker(const PipelineSpec& spec, const Library& library, SpecErrors& errors)
      : spec_(spec), library_(library), errors_(errors) {
    for (const StageSpec& stage : spec.stages) names_.push_back(stage.name);
  }

  void run() {
    // Reported by the parser already.
    if (spec_.stages.empty()) return;
    names();
    for (const StageSpec& stage : spec_.stages) {
      if (!stage.readable) continue;
      functions(stage);
      placement(stage);
      // With two stages of one name every look-up by name may find the other one: such an error would only mislead.
      if (!named_) continue;
      edges(stage);
      transports(stage);
    }
    pipeline();
    replicas();
    processes();
    environments();
    if (named_) graph();
    if (named_) check_chains(spec_, errors_);
    if (named_) check_prefill(spec_, errors_);
    if (named_) check_encode(spec_, errors_);
  }

 private:
  void names() {
    std::set<std::string_view> seen;
    for (const StageSpec& stage : spec_.stages) {
      const bool fresh = seen.insert(stage.name).second;
      named_ = named_ && fresh && (stage.readable || !stage.name.empty());
      // Its name is what could not be read.
      if (!stage.readable && stage.name.empty()) continue;
      if (!wire::is_stage_name(stage.name)) {
        errors_.add(stage.line_of("name"), "the name of a stage is '{}'; wanted 1 to {} letters, digits, '-' and '_'",
                    stage.name.substr(0, wire::kMaxStageNameBytes), wire::kMaxStageNameBytes);
      } else if (stage.name == kCoordinatorStage) {
        errors_.add(stage.line_of("name"), "a stage is called '{}', the name of the coordinator; wanted another",
                    stage.name);
      } else if (!fresh) {
        errors_.add(stage.line_of("name"), "there are two stages '{}'; wanted one", stage.name);
      }
    }
  }

  // The keys outside the stages.
  void pipeline() {
    const int line = spec_.line_of("relay");
    backend(line, "the pipeline", spec_.relay.backend);
    known("terminals_rule", spec_.line_of("terminals_rule"), "the pipeline", spec_.terminals_rule,
          library_.terminal_rules);
    if (const Status status = spec_.control.empty() ? ok_status() : check_reachable(spec_.control); !status.ok()) {
      errors_.add(spec_.line_of("control"), "control of the pipeline: {}", status.message());
    }
    if (!named_ || !spec_.readable) return;
    const StageSpec* entry = spec_.find(spec_.entry);
    if (entry == nullptr) return no_stage(spec_.line_of("entry"), "entry of the pipeline", spec_.entry);
    // What clients submit goes from the coordinator to the entry through the pipeline's own relay.
    if (!entry->readable) return;
    transport(line, "the pipeline", spec_.relay, coordinator(), *entry,
              fmt::format("the entry '{}', which gets what clients submit, is", entry->name));
  }

  void no_stage(int line, std::string_view where, const std::string& name) {
    const std::vector<std::string_view> known(names_.begin(), names_.end());
    errors_.add(line, "{} is '{}'; wanted the name of a stage{}", where, name, suggestion(name, known));
    edges_known_ = false;
  }

  template <typename Map>
  void known(const char* key, int line, std::string_view what, const std::string& name, const Map& map) {
    if (name.empty() || map.contains(name)) return;
    std::vector<std::string_view> keys;
    keys.reserve(map.size());
    for (const auto& [key_name, value] : map) keys.push_back(key_name);
    errors_.add(line, "{} of {} is '{}'; wanted one of this program's{}", key, what, name,
                keys.empty() ? ", which has none" : fmt::format(" {}{}", keys.size(), suggestion(name, keys)));
  }

  void targets(const StageSpec& stage, const char* key, const std::vector<std::string>& targets) {
    for (const std::string& target : targets) {
      if (target == stage.name) {
        errors_.add(stage.line_of(key), "{} of stage '{}' is the stage itself", key, stage.name);
      } else if (!contains(names_, target)) {
        no_stage(stage.line_of(key), fmt::format("{} of stage '{}'", key, stage.name), target);
      }
    }
  }

  void edges(const StageSpec& stage) {
    if (!stage.takes_payloads()) return no_payloads(stage);
    // Equal where both or neither is set.
    if (stage.terminal == !stage.next.empty()) {
      errors_.add(stage.line_of("next"), "stage '{}' {}; wanted either next or terminal: true", stage.name,
                  stage.terminal ? "is terminal and has next" : "has no next and is not terminal");
      edges_known_ = false;
    }
    targets(stage, "next", stage.next);
    targets(stage, "stream_to", stage.stream_to);
    targets(stage, "wait_for", stage.wait_for);
    waits(stage);
    for (const auto& [target, projection] : stage.project_payload) {
      const int line = stage.line_of("project_payload");
      if (!contains(stage.next, target)) {
        errors_.add(line, "project_payload of stage '{}' names '{}'; wanted one of next: [{}]", stage.name, target,
                    fmt::join(stage.next, ", "));
      }
      known("project_payload", line, fmt::format("stage '{}'", stage.name), projection, library_.projections);
    }
  }

  // Of a worker that gets none: no key that would send it some, and none of its own.
  void no_payloads(const StageSpec& stage) {
    if (spec_.entry == stage.name) {
      errors_.add(stage.line, "the entry '{}' has the worker {}, which gets no requests; wanted another stage",
                  stage.name, stage.worker);
    }
    for (const char* key : {"next", "terminal", "stream_to", "wait_for", "merge", "route", "stream_done_to",
                            "project_payload", "wait_for_rule"}) {
      if (!stage.key_lines.contains(key)) continue;
      errors_.add(stage.line_of(key), "stage '{}' has {} and the worker {}, which gets no requests; wanted it left out",
                  stage.name, key, stage.worker);
    }
    const auto [wanted, what] = stage.computes_rows()   ? std::pair("layers_to", "rows")
                                : stage.encodes_media() ? std::pair("encode_from", "features")
                                                        : std::pair("prefill_from", "pages");
    for (const StageSpec& from : spec_.stages) {
      for (const char* key : {"next", "stream_to"}) {
        const auto& targets = std::string_view(key) == "next" ? from.next : from.stream_to;
        if (!contains(targets, stage.name)) continue;
        errors_.add(from.line_of(key), "{} of stage '{}' is '{}', which gets no requests; wanted {} for {}", key,
                    from.name, stage.name, wanted, what);
      }
    }
  }

  bool has_known_next(const StageSpec& stage) const {
    return stage.readable && std::all_of(stage.next.begin(), stage.next.end(),
                                         [this](const std::string& next) { return contains(names_, next); });
  }

  // Both directions: a payload that is waited for and never sent holds each request to its deadline, and `merge` gets
  // those that are waited for and no others.
  void waits(const StageSpec& stage) {
    const int line = stage.line_of("wait_for");
    for (const std::string& source : stage.wait_for) {
      const StageSpec* from = spec_.find(source);
      // The unknown name and the stage itself were reported by targets(); a `next` that is wrong may be the reason of
      // this one.
      if (from == nullptr || from == &stage || !has_known_next(*from) || contains(from->next, stage.name)) continue;
      errors_.add(line, "stage '{}' waits for '{}', whose next is [{}]; wanted it to name '{}'", stage.name, source,
                  fmt::join(from->next, ", "), stage.name);
    }
    for (const StageSpec& from : spec_.stages) {
      if (stage.wait_for.empty() || !contains(from.next, stage.name) || contains(stage.wait_for, from.name)) continue;
      errors_.add(line, "stage '{}' gets payloads of '{}' and does not wait for it; wanted it in wait_for", stage.name,
                  from.name);
    }
  }

  void functions(const StageSpec& stage) {
    const std::string what = fmt::format("stage '{}'", stage.name);
    if (stage.worker.empty()) errors_.add(stage.line_of("worker"), "{} has no worker", what);
    known("worker", stage.line_of("worker"), what, stage.worker, library_.workers);
    if (const auto check = library_.args_checks.find(stage.worker); check != library_.args_checks.end()) {
      if (const Status status = check->second(stage.args); !status.ok()) {
        errors_.add(stage.line_of("args"), "args of {}: {}", what, status.message());
      }
    }
    const auto named = [&](const char* key, const std::string& value, const auto& map, bool usable,
                           const char* wanted) {
      known(key, stage.line_of(key), what, value, map);
      if (!value.empty() && !usable) errors_.add(stage.line_of(key), "{} has {} without {}", what, key, wanted);
    };
    named("route", stage.route, library_.routes, !stage.next.empty(), "next");
    named("stream_done_to", stage.stream_done_to, library_.routes, !stage.stream_to.empty(), "stream_to");
    named("wait_for_rule", stage.wait_for_rule, library_.wait_rules, !stage.wait_for.empty(), "wait_for");
    named("merge", stage.merge, library_.merges, !stage.wait_for.empty(), "wait_for");
    if (!stage.wait_for.empty() && stage.merge.empty()) {
      errors_.add(stage.line_of("wait_for"), "{} waits for {} payloads and has no merge", what, stage.wait_for.size());
    }
  }

  void backend(int line, const std::string& what, const std::string& name) {
    if (std::find(std::begin(kRelays), std::end(kRelays), name) != std::end(kRelays)) return;
    errors_.add(line, "relay of {} is '{}'; wanted one of {}", what, name, fmt::join(kRelays, ", "));
  }

  void placement(const StageSpec& stage) {
    backend(stage.line_of("relay"), fmt::format("stage '{}'", stage.name), stage.relay.backend);
    if (!wire::is_stage_name(stage.process)) {
      errors_.add(stage.line_of("process"),
                  "process of stage '{}' is '{}'; wanted 1 to {} letters, digits, '-' and '_'", stage.name,
                  stage.process, wire::kMaxStageNameBytes);
    }
    if (!stage.host.empty() && stage.process == kServerProcess) {
      errors_.add(
          stage.line_of("host"),
          "stage '{}' is on host '{}' and in the process '{}', which is the coordinator's; wanted another process",
          stage.name, stage.host, kServerProcess);
    }
    // Where a key outside the stages could not be read, that key may be `control`.
    if (!stage.host.empty() && spec_.control.empty() && spec_.readable) {
      errors_.add(stage.line_of("host"),
                  "stage '{}' runs on host '{}', which finds this one by the pipeline's control; wanted control: "
                  "tcp://ADDRESS:PORT",
                  stage.name, stage.host);
    }
  }

  void transports(const StageSpec& stage) {
    const std::string what = fmt::format("stage '{}'", stage.name);
    const int line = stage.line_of("relay");
    for (const auto* list : {&stage.next, &stage.stream_to}) {
      for (const std::string& target : *list) {
        const StageSpec* to = spec_.find(target);
        if (to != nullptr && to->readable) {
          transport(line, what, stage.relay, stage, *to, fmt::format("its target '{}' is", target));
        }
      }
    }
    if (!stage.terminal) return;
    transport(line, what, stage.relay, stage, coordinator(), "the coordinator, which gets its result, is");
  }

  // The process of the coordinator, as if it were a stage.
  static StageSpec coordinator() {
    StageSpec out;
    out.process = kServerProcess;
    return out;
  }

  // Each replica is a process, but for those in the coordinator's.
  static bool same_process(const StageSpec& from, const StageSpec& to) {
    if (from.host != to.host || from.process != to.process) return false;
    return from.process == kServerProcess || (from.replicas == 1 && to.replicas == 1);
  }

  void transport(int line, const std::string& what, const RelaySpec& relay, const StageSpec& from, const StageSpec& to,
                 const std::string& whom) {
    const bool shm = relay.backend == "shm";
    // "auto" and the relays over a network go everywhere; only these two have a reach.
    if (shm ? from.host == to.host : relay.backend != "local" || same_process(from, to)) return;
    errors_.add(line, "relay of {} is '{}', and {} in another {}; wanted 'auto' or one that goes there", what,
                relay.backend, whom, shm ? "host" : "process");
  }

  // Each has an entry in the table of peers, and the coordinator has one.
  void replicas() {
    std::size_t count = 0;
    for (const StageSpec& stage : spec_.stages) count += static_cast<std::size_t>(stage.replicas);
    // The coordinator's own entry is one of them.
    if (count < wire::kMaxPeers) return;
    errors_.add(spec_.line_of("stages"),
                "stages are {}, replicas counted; wanted at most {}, so that a table of peers holds them", count,
                wire::kMaxPeers - 1);
  }

  void processes() {
    std::map<std::string, const StageSpec*> first;
    for (const StageSpec& stage : spec_.stages) {
      if (!stage.readable) continue;
      // Each is compared with the first of its process, which is enough: hosts must be equal, and a stage with replicas
      // must be alone.
      const auto [found, fresh] = first.emplace(stage.process, &stage);
      if (fresh) continue;
      const StageSpec& other = *found->second;
      if (other.host != stage.host) {
        errors_.add(stage.line_of("process"), "stages '{}' and '{}' share the process '{}' and have different hosts",
                    other.name, stage.name, stage.process);
      }
      if (other.replicas > 1 || stage.replicas > 1) {
        errors_.add(stage.line_of("process"),
                    "stages '{}' and '{}' share the process '{}', and one has replicas; wanted a process of "
                    "its own",
                    other.name, stage.name, stage.process);
      }
    }
    for (const StageSpec& stage : spec_.stages) replica_names(stage);
  }

  // The names that replicas_of_processes() gives to the processes of replicas, NAME-INDEX, are not of another stage.
  // Those of two stages with replicas differ where their NAMEs do, for the INDEX has no '-'.
  void replica_names(const StageSpec& stage) {
    if (!stage.readable || !stage.host.empty() || stage.replicas > 1) return;
    const std::size_t cut = stage.process.rfind('-');
    if (cut == std::string::npos) return;
    const std::string name = stage.process.substr(0, cut), index = stage.process.substr(cut + 1);
    for (const StageSpec& other : spec_.stages) {
      if (!other.readable || !other.host.empty() || other.process != name || name == kServerProcess) continue;
      int number = 0;
      std::from_chars(index.data(), index.data() + index.size(), number);
      // "0" is the index of a replica, "00" is not.
      if (other.replicas < 2 || number >= other.replicas || index != std::to_string(number)) continue;
      errors_.add(stage.line_of("process"),
                  "stage '{}' has the process '{}', which is a replica's of stage '{}'; wanted another name",
                  stage.name, stage.process, other.name);
    }
  }

  void variables(int line, const std::string& where, const std::map<std::string, std::string>& env) {
    for (const auto& [name, value] : env) {
      const bool fits = !name.empty() && name.find('=') == std::string::npos;
      // environ(7): "NAME=value", ended by a 0 byte.
      if (fits && (name + value).find('\0') == std::string::npos) continue;
      errors_.add(line, "{} has the variable '{}'; wanted a name without '=', and no byte 0", where,
                  name.substr(0, wire::kMaxStageNameBytes));
    }
  }

  // A process has one environment, which only the server's own children get from here.
  void environments() {
    variables(spec_.line_of("env_defaults"), "env_defaults of the pipeline", spec_.env_defaults);
    std::map<std::pair<std::string, std::string>, const StageSpec*> first;  // by process and variable
    for (const StageSpec& stage : spec_.stages) {
      if (!stage.readable) continue;
      variables(stage.line_of("env"), fmt::format("env of stage '{}'", stage.name), stage.env);
      if (!stage.env.empty() && stage.process == kServerProcess) {
        errors_.add(stage.line_of("env"),
                    "stage '{}' has env and is in the process '{}', whose environment is the server's", stage.name,
                    kServerProcess);
      }
      if (!stage.env.empty() && !stage.host.empty()) {
        errors_.add(stage.line_of("env"),
                    "stage '{}' has env and runs on host '{}', where the joining process sets the environment",
                    stage.name, stage.host);
      }
      for (const auto& [name, value] : stage.env) {
        const StageSpec& other = *first.emplace(std::pair(stage.process, name), &stage).first->second;
        if (other.env.at(name) == value) continue;
        errors_.add(stage.line_of("env"),
                    "stages '{}' and '{}' share the process '{}', and their env gives '{}' two values", other.name,
                    stage.name, stage.process, name);
      }
    }
  }

  void graph() {
    const bool all_read =
        std::all_of(spec_.stages.begin(), spec_.stages.end(), [](const auto& s) { return s.readable; });
    // Else a stage may be reached by an edge that is not known.
    if (all_read && spec_.readable && edges_known_) reach();
    cycles();
  }

  void reach() {
    std::set<std::string> reached;
    const std::function<void(const StageSpec&)> visit = [&](const StageSpec& stage) {
      if (!reached.insert(stage.name).second) return;
      for (const std::string& next : stage.next) visit(*spec_.find(next));
    };
    visit(*spec_.find(spec_.entry));
    for (const StageSpec& stage : spec_.stages) {
      if (!reached.contains(stage.name) && stage.takes_payloads()) {
        errors_.add(stage.line, "stage '{}' is reached by no payload from the entry '{}'", stage.name, spec_.entry);
      }
    }
  }

  // Depth first over payloads and streams together: a cycle of either would wait for its own credits.
  void cycles() {
    enum { kNew, kOpen, kDone };
    std::map<std::string, int> state;
    std::vector<std::string> path;
    const std::function<bool(const StageSpec&)> visit = [&](const StageSpec& stage) {
      if (state[stage.name] == kDone) return true;
      path.push_back(stage.name);
      if (state[stage.name] == kOpen) {
        // The way to the cycle is no part of it. The last element is the stage once more, which closes it.
        path.erase(path.begin(), std::find(path.begin(), path.end() - 1, stage.name));
        errors_.add(stage.line, "the stages form a cycle: {}", fmt::join(path, " -> "));
        return false;
      }
      state[stage.name] = kOpen;
      for (const auto* list : {&stage.next, &stage.stream_to}) {
        for (const std::string& target : *list) {
          const StageSpec* to = spec_.find(target);
          if (to != nullptr && to != &stage && !visit(*to)) return false;  // itself: reported already
        }
      }
      state[stage.name] = kDone;
      path.pop_back();
      return true;
    };
    for (const StageSpec& stage : spec_.stages) {
      // The first cycle only: `state` and `path` are left in the middle.
      if (!visit(stage)) return;
    }
  }

  const PipelineSpec& spec_;
  const Library& library_;
  SpecErrors& errors_;
  std::vector<std::string> names_;
  bool named_ = true;        // each stage by a name of its own
  bool edges_known_ = true;  // so far: each `next`, and the entry, is a stage
};

}  // namespace

void check_pipeline(const PipelineSpec& spec, const Library& library, SpecErrors& errors) {
  Checker(spec, library, errors).run();
}

const StageSpec* PipelineSpec::find(std::string_view name) const {
  for (const StageSpec& stage : stages) {
    if (stage.name == name) return &stage;
  }
  return nullptr;
}

std::map<std::string, std::string> PipelineSpec::env_of(const std::vector<std::string>& names) const {
  std::map<std::string, std::string> out;
  for (const std::string& name : names) {
    if (const StageSpec* stage = find(name)) out.insert(stage->env.begin(), stage->env.end());
  }
  return out;
}

Status PipelineSpec::may_be_single(const std::string& file) const {
  for (const StageSpec& stage : stages) {
    if (stage.env.empty()) continue;
    return invalid_argument("{}:{}: stage '{}' has env, and no process of its own with --placement single", file,
                            stage.line_of("env"), stage.name);
  }
  return ok_status();
}

int PipelineSpec::line_of(std::string_view key) const {
  const auto found = key_lines.find(key);
  return found == key_lines.end() ? 1 : found->second;
}

bool PipelineSpec::over_hosts() const {
  return std::any_of(stages.begin(), stages.end(), [](const StageSpec& stage) { return !stage.host.empty(); });
}

std::vector<std::string> PipelineSpec::terminals() const {
  std::vector<std::string> out;
  for (const StageSpec& stage : stages) {
    if (stage.terminal) out.push_back(stage.name);
  }
  return out;
}

}  // namespace millrace
