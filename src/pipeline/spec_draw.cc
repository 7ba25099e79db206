// A pipeline in Graphviz's language, and its checksum. spec_svg.cc draws the picture for where Graphviz is not.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "payload/packing.h"
#include "pipeline/spec.h"
#include "pipeline/spec_text.h"

namespace millrace {
namespace {

constexpr const char* kFills[] = {"#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3",
                                  "#ede9fe", "#cffafe", "#ffedd5", "#f1f5f9"};

// An ID of the DOT language: in quotes only the quote has to be escaped; the backslash too, as labels give it a
// meaning.
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::string location_of(const StageSpec& stage) {
  return stage.host.empty() ? stage.process : fmt::format("{} on {}", stage.process, stage.host);
}

std::string location_line(const StageSpec& stage) {
  const std::string where = location_of(stage);
  if (stage.stalled_ms == loop::kWorkerStalledMs) return where;
  if (stage.stalled_ms == 0) return where + ", never stalls";
  return fmt::format("{}, stalls at {:g} s", where, static_cast<double>(stage.stalled_ms) / 1000);
}

std::string worker_line(const StageSpec& stage) {
  std::string out = stage.replicas > 1 ? fmt::format("{} x {}", stage.worker, stage.replicas) : stage.worker;
  if (stage.layers) out += fmt::format(" [{}, {})", stage.layers->begin, stage.layers->end);
  return out;
}

std::string to_dot(const PipelineSpec& spec) {
  std::string out = fmt::format("digraph {} {{\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\"];\n",
                                in_quotes(spec.name.empty() ? "pipeline" : spec.name));
  // Sorted by name, so that equal pipelines give the same text.
  std::map<std::string, std::vector<const StageSpec*>> groups;
  for (const StageSpec& stage : spec.stages) groups[location_of(stage)].push_back(&stage);
  int number = 0;
  for (const auto& [where, stages] : groups) {
    out += fmt::format("  subgraph cluster_{} {{\n    label={};\n", number, in_quotes(where));
    for (const StageSpec* stage : stages) {
      out += fmt::format("    {} [label={}, fillcolor={}{}];\n", in_quotes(stage->name),
                         in_quotes(stage->name + "\n" + worker_line(*stage)),
                         in_quotes(kFills[static_cast<std::size_t>(number) % std::size(kFills)]),
                         stage->terminal ? ", peripheries=2" : "");
    }
    out += "  }\n";
    ++number;
  }
  for (const StageSpec& stage : spec.stages) {
    for (const std::string& target : stage.next)
      out += fmt::format("  {} -> {};\n", in_quotes(stage.name), in_quotes(target));
    for (const std::string& target : stage.stream_to) {
      out += fmt::format("  {} -> {} [style=dashed];\n", in_quotes(stage.name), in_quotes(target));
    }
    if (!stage.prefill_from.empty()) {
      out += fmt::format("  {} -> {} [style=dotted, label=\"pages\"];\n", in_quotes(stage.prefill_from),
                         in_quotes(stage.name));
    }
    if (!stage.encode_from.empty()) {
      out += fmt::format("  {} -> {} [style=dotted, label=\"features\"];\n", in_quotes(stage.encode_from),
                         in_quotes(stage.name));
    }
    if (stage.layers_to.empty()) continue;
    out +=
        fmt::format("  {} -> {} [style=dotted, label=\"rows\"];\n", in_quotes(stage.name), in_quotes(stage.layers_to));
  }
  return out + "}\n";
}

// Over every field that changes what a member does, each ended by a byte that no name holds.
uint64_t PipelineSpec::hash() const {
  std::string all;
  const auto add = [&all](const auto& field) { all += fmt::format("{}\x1f", field); };
  const auto add_list = [&](const std::vector<std::string>& list) {
    // With its length, so that the end of one list is not the beginning of the next.
    add(list.size());
    for (const std::string& element : list) add(element);
  };
  const auto add_map = [&](const std::map<std::string, std::string>& map) {
    add(map.size());
    for (const auto& [key, value] : map) add(key), add(value);
  };
  const auto add_relay = [&](const RelaySpec& r) { add(r.backend), add(r.pool_mib), add(r.credits), add(r.lease_ms); };
  add(name), add(entry), add(terminals_rule), add_relay(relay);
  add_map(env_defaults);
  for (const StageSpec& s : stages) {
    add(s.name), add(s.worker), add(s.terminal), add(s.route), add(s.wait_for_rule), add(s.merge),
        add(s.stream_done_to);
    add(s.can_accept_stream_before_payload), add(s.process), add(s.host), add(s.replicas), add_relay(s.relay);
    add(s.resources.threads), add(s.resources.memory_mib), add(s.resources.max_requests);
    add(s.stalled_ms);
    if (s.layers) add(s.layers->begin), add(s.layers->end), add(s.layers_to);
    if (!s.prefill_from.empty()) add(s.prefill_from);
    if (!s.encode_from.empty()) add(s.encode_from);
    add_list(s.next), add_list(s.wait_for), add_list(s.stream_to), add_map(s.project_payload), add_map(s.env);
    // As msgpack, which distinguishes "1" from 1.
    const auto lifted = lift(s.args);
    // parse_pipeline() has refused such args: without them hosts with other args would match.
    CHECK(lifted.ok());
    add(lifted->tree);
  }
  return XXH3_64bits(all.data(), all.size());
}

}  // namespace millrace
