// Pictures of a pipeline: Graphviz's language, and an SVG of its own for where Graphviz is not.
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "payload/packing.h"
#include "pipeline/spec.h"

namespace millrace {
namespace {

constexpr int kBoxWidth = 168, kBoxHeight = 58, kGapX = 70, kGapY = 26, kMargin = 24, kBow = 70;
constexpr const char* kFills[] = {"#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3",
                                  "#ede9fe", "#cffafe", "#ffedd5", "#f1f5f9"};

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

// Where a stage runs: its process, and its host where that is another.
std::string location(const StageSpec& stage) {
  return stage.host.empty() ? stage.process : fmt::format("{} on {}", stage.process, stage.host);
}

// The same, and how long a call of its worker may take where that is not as usual.
std::string third_line(const StageSpec& stage) {
  if (stage.stalled_ms == loop::kWorkerStalledMs) return location(stage);
  if (stage.stalled_ms == 0) return location(stage) + ", never stalls";
  return fmt::format("{}, stalls at {:g} s", location(stage), static_cast<double>(stage.stalled_ms) / 1000);
}

std::string second_line(const StageSpec& stage) {
  std::string out = stage.replicas > 1 ? fmt::format("{} x {}", stage.worker, stage.replicas) : stage.worker;
  if (stage.layers) out += fmt::format(" [{}, {})", stage.layers->begin, stage.layers->end);
  return out;
}

struct Box {
  int x = 0, y = 0;
};

// Each stage stands one column right of the farthest of those that send to it. The graph has no cycles.
std::map<std::string, int> columns(const PipelineSpec& spec) {
  std::map<std::string, int> column;
  for (std::size_t round = 0; round < spec.stages.size(); ++round) {
    for (const StageSpec& stage : spec.stages) {
      for (const auto* list : {&stage.next, &stage.stream_to}) {
        for (const std::string& target : *list) column[target] = std::max(column[target], column[stage.name] + 1);
      }
      if (!stage.prefill_from.empty()) {
        column[stage.name] = std::max(column[stage.name], column[stage.prefill_from] + 1);
      }
      if (!stage.encode_from.empty()) {
        column[stage.name] = std::max(column[stage.name], column[stage.encode_from] + 1);
      }
      if (stage.layers_to.empty()) continue;
      column[stage.layers_to] = std::max(column[stage.layers_to], column[stage.name] + 1);
    }
  }
  return column;
}

struct EdgeStyle {
  const char* marker;
  const char* color;
  const char* dashes;  // an attribute, or none
  int dy;              // from the middle of a box
};
constexpr EdgeStyle kPayloadEdge{"payload", "#334155", "", -6};
constexpr EdgeStyle kStreamEdge{"stream", "#0369a1", " stroke-dasharray=\"5 4\"", 12};
constexpr EdgeStyle kPagesEdge{"pages", "#15803d", " stroke-dasharray=\"2 3\"", 3};
constexpr EdgeStyle kFeaturesEdge{"features", "#7e22ce", " stroke-dasharray=\"2 3\"", 3};
constexpr EdgeStyle kRowsEdge{"rows", "#b45309", " stroke-dasharray=\"2 3\"", 3};

std::string edge(const Box& from, const Box& to, const EdgeStyle& style) {
  const int dy = style.dy;
  const int x1 = from.x + kBoxWidth, y1 = from.y + kBoxHeight / 2 + dy;
  const int x2 = to.x - 2, y2 = to.y + kBoxHeight / 2 + dy;
  const int bend = std::max(30, (x2 - x1) / 2);
  // What passes a column between goes round its boxes.
  const int bow = x2 - x1 <= kGapX ? 0 : to.y > from.y + kBoxHeight / 2 ? kBow : -kBow;
  return fmt::format(
      "<path d=\"M{} {} C{} {} {} {} {} {}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{} "
      "marker-end=\"url(#{})\"/>\n",
      x1, y1, x1 + bend, y1 + bow, x2 - bend, y2 + bow, x2, y2, style.color, style.dashes, style.marker);
}

std::string marker(const EdgeStyle& style) {
  return fmt::format(
      "<marker id=\"{}\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" "
      "orient=\"auto\"><path d=\"M0 0 L10 5 L0 10 z\" fill=\"{}\"/></marker>\n",
      style.marker, style.color);
}

std::string box(const StageSpec& stage, const Box& at, bool entry, const char* fill) {
  const int middle = at.x + kBoxWidth / 2;
  std::string out = fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\" fill=\"{}\" stroke=\"#334155\" "
      "stroke-width=\"{}\"/>\n",
      at.x, at.y, kBoxWidth, kBoxHeight, stage.terminal ? 26 : 7, fill, entry ? 2.4 : 1.2);
  const auto line = [&](int dy, const char* style, const std::string& text) {
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" {}>{}</text>\n", middle, at.y + dy, style,
                       escaped(text));
  };
  line(21, "font-size=\"14\" font-weight=\"bold\"", stage.name);
  line(37, "font-size=\"11\"", second_line(stage));
  line(51, "font-size=\"10\" fill=\"#475569\"", third_line(stage));
  return out;
}

}  // namespace

std::string to_dot(const PipelineSpec& spec) {
  std::string out = fmt::format("digraph {} {{\n  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\"];\n",
                                quoted(spec.name.empty() ? "pipeline" : spec.name));
  std::map<std::string, std::vector<const StageSpec*>> groups;
  for (const StageSpec& stage : spec.stages) groups[location(stage)].push_back(&stage);
  int number = 0;
  for (const auto& [where, stages] : groups) {
    out += fmt::format("  subgraph cluster_{} {{\n    label={};\n", number, quoted(where));
    for (const StageSpec* stage : stages) {
      out += fmt::format("    {} [label={}, fillcolor={}{}];\n", quoted(stage->name),
                         quoted(stage->name + "\n" + second_line(*stage)),
                         quoted(kFills[static_cast<std::size_t>(number) % std::size(kFills)]),
                         stage->terminal ? ", peripheries=2" : "");
    }
    out += "  }\n";
    ++number;
  }
  for (const StageSpec& stage : spec.stages) {
    for (const std::string& target : stage.next)
      out += fmt::format("  {} -> {};\n", quoted(stage.name), quoted(target));
    for (const std::string& target : stage.stream_to) {
      out += fmt::format("  {} -> {} [style=dashed];\n", quoted(stage.name), quoted(target));
    }
    if (!stage.prefill_from.empty()) {
      out +=
          fmt::format("  {} -> {} [style=dotted, label=\"pages\"];\n", quoted(stage.prefill_from), quoted(stage.name));
    }
    if (!stage.encode_from.empty()) {
      out += fmt::format("  {} -> {} [style=dotted, label=\"features\"];\n", quoted(stage.encode_from),
                         quoted(stage.name));
    }
    if (stage.layers_to.empty()) continue;
    out += fmt::format("  {} -> {} [style=dotted, label=\"rows\"];\n", quoted(stage.name), quoted(stage.layers_to));
  }
  return out + "}\n";
}

std::string to_svg(const PipelineSpec& spec) {
  std::map<std::string, int> column = columns(spec);
  std::map<int, int> rows;
  std::map<std::string, Box> boxes;
  std::map<std::string, std::size_t> fills;
  int width = 0, height = 0;
  const auto any = [&spec](auto has) { return std::any_of(spec.stages.begin(), spec.stages.end(), has); };
  const bool has_rows = any([](const StageSpec& stage) { return !stage.layers_to.empty(); });
  const bool has_pages = any([](const StageSpec& stage) { return !stage.prefill_from.empty(); });
  const bool has_features = any([](const StageSpec& stage) { return !stage.encode_from.empty(); });
  for (const StageSpec& stage : spec.stages) {
    const int x = column[stage.name], y = rows[x]++;
    const Box at{kMargin + x * (kBoxWidth + kGapX), kMargin + 46 + y * (kBoxHeight + kGapY) + x % 2 * kGapY};
    boxes[stage.name] = at;
    width = std::max(width, at.x + kBoxWidth + kMargin);
    height = std::max(height, at.y + kBoxHeight + kMargin);
    fills.emplace(location(stage), fills.size());
  }
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\">\n<defs>\n{2}{3}</defs>\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"{4}\" y=\"26\" font-size=\"13\" fill=\"#475569\">{5}: payloads solid, streams dashed, {6}round ends "
      "are "
      "terminals, one colour a process</text>\n",
      width, height, marker(kPayloadEdge),
      marker(kStreamEdge) + (has_rows ? marker(kRowsEdge) : "") + (has_pages ? marker(kPagesEdge) : "") +
          (has_features ? marker(kFeaturesEdge) : ""),
      kMargin, escaped(spec.name),
      std::string(has_rows ? "rows of layers dotted, " : "") + (has_pages ? "KV pages dotted, " : "") +
          (has_features ? "features dotted, " : ""));
  for (const StageSpec& stage : spec.stages) {
    const Box& from = boxes[stage.name];
    for (const std::string& target : stage.next) out += edge(from, boxes[target], kPayloadEdge);
    for (const std::string& target : stage.stream_to) out += edge(from, boxes[target], kStreamEdge);
    if (!stage.layers_to.empty()) out += edge(from, boxes[stage.layers_to], kRowsEdge);
    if (!stage.prefill_from.empty()) out += edge(boxes[stage.prefill_from], from, kPagesEdge);
    if (!stage.encode_from.empty()) out += edge(boxes[stage.encode_from], from, kFeaturesEdge);
  }
  for (const StageSpec& stage : spec.stages) {
    out += box(stage, boxes[stage.name], stage.name == spec.entry, kFills[fills[location(stage)] % std::size(kFills)]);
  }
  return out + "</svg>\n";
}

// Over every field that changes what a member does, each ended by a byte that no name holds.
uint64_t PipelineSpec::hash() const {
  std::string all;
  const auto add = [&all](const auto& field) { all += fmt::format("{}\x1f", field); };
  const auto add_list = [&](const std::vector<std::string>& list) {
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
    if (const auto lifted = lift(s.args); lifted.ok()) add(lifted->tree);
  }
  return XXH3_64bits(all.data(), all.size());
}

}  // namespace millrace
