// The picture of a pipeline as SVG: a column of boxes for each step of the way, edges between them.
//
// No edge passes behind a box. Between two columns is a gap without boxes, in which an edge to the next column bends.
// One that goes further passes below all boxes, in a lane of its own, and bends in the gaps at its two ends alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/svg.h"
#include "pipeline/spec.h"
#include "pipeline/spec_text.h"

namespace millrace {
namespace {

constexpr int kBoxWidth = 168, kBoxHeight = 58, kGapX = 70, kGapY = 26, kMargin = 24, kLaneGap = 14;
constexpr int kLegendTop = 44, kLegendLine = 18, kSampleWidth = 30, kItemGap = 18;
constexpr double kCharWidth = 7.2;  // of the legend's letters, at most: an item is placed by its length
constexpr const char* kFills[] = {"#dbeafe", "#dcfce7", "#fef3c7", "#fce7f3",
                                  "#ede9fe", "#cffafe", "#ffedd5", "#f1f5f9"};

struct EdgeStyle {
  const char* marker;
  const char* color;
  const char* dashes;  // of the stroke; empty: a solid line
  int dy;              // from the middle of a box
  const char* label;
};
constexpr EdgeStyle kPayload{"payload", "#334155", "", -6, "payloads"};
constexpr EdgeStyle kStream{"stream", "#0369a1", "5 4", 12, "streams dashed"};
constexpr EdgeStyle kPages{"pages", "#15803d", "2 3", 3, "KV pages dotted"};
constexpr EdgeStyle kFeatures{"features", "#7e22ce", "2 3", 3, "features dotted"};
constexpr EdgeStyle kRows{"rows", "#b45309", "2 3", 3, "rows of layers dotted"};

struct Edge {
  std::string from, to;
  const EdgeStyle* style = nullptr;
};

std::vector<Edge> edges_of(const PipelineSpec& spec) {
  std::vector<Edge> out;
  for (const StageSpec& stage : spec.stages) {
    for (const std::string& target : stage.next) out.push_back({stage.name, target, &kPayload});
    for (const std::string& target : stage.stream_to) out.push_back({stage.name, target, &kStream});
    if (!stage.layers_to.empty()) out.push_back({stage.name, stage.layers_to, &kRows});
    if (!stage.prefill_from.empty()) out.push_back({stage.prefill_from, stage.name, &kPages});
    if (!stage.encode_from.empty()) out.push_back({stage.encode_from, stage.name, &kFeatures});
  }
  return out;
}

// Each stage stands one column right of the farthest of those that send to it. The graph has no cycles.
std::map<std::string, int> columns(const PipelineSpec& spec, const std::vector<Edge>& edges) {
  std::map<std::string, int> column;
  for (std::size_t round = 0; round < spec.stages.size(); ++round) {
    for (const Edge& edge : edges) column[edge.to] = std::max(column[edge.to], column[edge.from] + 1);
  }
  return column;
}

struct Box {
  int column = 0, x = 0, y = 0;
};

struct Item {
  const EdgeStyle* style = nullptr;  // a sample of the line before it; null: none
  const char* text = "";
  int x = 0, y = 0;
};

int width_of(std::string_view text) { return static_cast<int>(static_cast<double>(text.size()) * kCharWidth); }

// Where everything stands.
struct Layout {
  std::map<std::string, Box> boxes;
  std::vector<Item> legend;
  int width = 0, height = 0, bottom = 0;  // of all boxes: the first lane is below it
};

std::vector<Item> legend_of(const std::vector<Edge>& edges) {
  std::vector<Item> out;
  for (const EdgeStyle* style : {&kPayload, &kStream, &kRows, &kPages, &kFeatures}) {
    const bool used = std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) { return edge.style == style; });
    if (used) out.push_back({style, style->label});
  }
  out.push_back({nullptr, "thick: the entry; round ends: terminals; one colour a process"});
  return out;
}

// The items beside each other, in as many lines as the width wants. Returns where the boxes may begin.
int lay_out_legend(std::vector<Item>& legend, int width) {
  int x = kMargin, y = kLegendTop;
  for (Item& item : legend) {
    const int wide = (item.style != nullptr ? kSampleWidth : 0) + width_of(item.text);
    if (x > kMargin && x + wide > width - kMargin) x = kMargin, y += kLegendLine;
    item.x = x;
    item.y = y;
    x += wide + kItemGap;
  }
  return y + kLegendLine;
}

Layout layout_of(const PipelineSpec& spec, const std::vector<Edge>& edges) {
  Layout out;
  std::map<std::string, int> column = columns(spec, edges);
  int columns_used = 1;
  for (const auto& [name, at] : column) columns_used = std::max(columns_used, at + 1);
  out.legend = legend_of(edges);
  out.width = 2 * kMargin + columns_used * (kBoxWidth + kGapX) - kGapX;
  out.width = std::max(out.width, 2 * kMargin + 2 * width_of(spec.name));
  for (const Item& item : out.legend) {
    out.width = std::max(out.width, 2 * kMargin + width_of(item.text) + (item.style != nullptr ? kSampleWidth : 0));
  }
  const int top = lay_out_legend(out.legend, out.width);
  std::map<int, int> rows;
  for (const StageSpec& stage : spec.stages) {
    const int at = column[stage.name], row = rows[at]++;
    const Box box{at, kMargin + at * (kBoxWidth + kGapX), top + row * (kBoxHeight + kGapY) + at % 2 * kGapY};
    out.boxes[stage.name] = box;
    out.bottom = std::max(out.bottom, box.y + kBoxHeight);
  }
  const auto lanes = std::count_if(edges.begin(), edges.end(), [&](const Edge& edge) {
    return out.boxes[edge.to].column > out.boxes[edge.from].column + 1;
  });
  out.height = out.bottom + static_cast<int>(lanes) * kLaneGap + kMargin;
  return out;
}

// `lane`: of those below the boxes, taken where the edge needs one.
std::string path_of(const Edge& edge, Layout& layout, int& lane) {
  const Box& from = layout.boxes[edge.from];
  const Box& to = layout.boxes[edge.to];
  const int dy = kBoxHeight / 2 + edge.style->dy;
  const int x1 = from.x + kBoxWidth, y1 = from.y + dy, x2 = to.x - 2, y2 = to.y + dy;
  constexpr int kHalf = kGapX / 2;
  if (to.column <= from.column + 1) {
    return fmt::format("M{} {} C{} {} {} {} {} {}", x1, y1, x1 + kHalf, y1, x2 - kHalf, y2, x2, y2);
  }
  const int y = layout.bottom + ++lane * kLaneGap, in = x1 + kGapX - 4, out = to.x - kGapX + 4;
  return fmt::format("M{} {} C{} {} {} {} {} {} H{} C{} {} {} {} {} {}", x1, y1, x1 + kHalf, y1, in - kHalf, y, in, y,
                     out, out + kHalf, y, x2 - kHalf, y2, x2, y2);
}

void draw_line(SvgWriter& svg, std::string_view path, const EdgeStyle& style, bool arrow) {
  svg.begin("path").attribute("d", path).attribute("fill", "none").attribute("stroke", style.color);
  svg.attribute("stroke-width", 1.6, 1);
  if (*style.dashes != '\0') svg.attribute("stroke-dasharray", style.dashes);
  if (arrow) svg.attribute("marker-end", fmt::format("url(#{})", style.marker));
  svg.end().line_break();
}

void draw_marker(SvgWriter& svg, const EdgeStyle& style) {
  svg.begin("marker").attribute("id", style.marker).attribute("viewBox", "0 0 10 10");
  svg.attribute("refX", 9).attribute("refY", 5).attribute("markerWidth", 7).attribute("markerHeight", 7);
  svg.attribute("orient", "auto").begin("path").attribute("d", "M0 0 L10 5 L0 10 z").attribute("fill", style.color);
  svg.end().end().line_break();
}

void draw_legend(SvgWriter& svg, const Layout& layout, std::string_view name) {
  svg.begin("text").attribute("x", kMargin).attribute("y", 26).attribute("font-size", 15);
  svg.attribute("font-weight", "bold").text(name).end().line_break();
  for (const Item& item : layout.legend) {
    const int sample = item.style != nullptr ? kSampleWidth : 0;
    if (sample > 0) draw_line(svg, fmt::format("M{} {} h{}", item.x, item.y - 4, sample - 6), *item.style, false);
    svg.begin("text").attribute("x", item.x + sample).attribute("y", item.y).attribute("font-size", 12);
    svg.attribute("fill", "#475569").text(item.text).end().line_break();
  }
}

void draw_box(SvgWriter& svg, const StageSpec& stage, const Box& at, bool entry, const char* fill) {
  svg.begin("rect").attribute("x", at.x).attribute("y", at.y).attribute("width", kBoxWidth);
  svg.attribute("height", kBoxHeight).attribute("rx", stage.terminal ? 26 : 7).attribute("fill", fill);
  svg.attribute("stroke", "#334155").attribute("stroke-width", entry ? 2.4 : 1.2, 1).end().line_break();
  const int middle = at.x + kBoxWidth / 2;
  const auto begin_text = [&](int dy, int size) -> SvgWriter& {
    svg.begin("text").attribute("x", middle).attribute("y", at.y + dy).attribute("text-anchor", "middle");
    return svg.attribute("font-size", size);
  };
  begin_text(21, 14).attribute("font-weight", "bold").text(stage.name).end().line_break();
  begin_text(37, 11).text(worker_line(stage)).end().line_break();
  begin_text(51, 10).attribute("fill", "#475569").text(location_line(stage)).end().line_break();
}

}  // namespace

std::string to_svg(const PipelineSpec& spec) {
  const std::vector<Edge> edges = edges_of(spec);
  Layout layout = layout_of(spec, edges);
  SvgWriter svg;
  svg.begin("svg").attribute("xmlns", "http://www.w3.org/2000/svg");
  svg.attribute("width", layout.width).attribute("height", layout.height);
  svg.attribute("viewBox", fmt::format("0 0 {} {}", layout.width, layout.height));
  svg.attribute("font-family", "sans-serif").line_break().begin("defs").line_break();
  for (const Item& item : layout.legend) {
    if (item.style != nullptr) draw_marker(svg, *item.style);
  }
  svg.end().line_break();
  svg.begin("rect").attribute("width", layout.width).attribute("height", layout.height).attribute("fill", "#ffffff");
  svg.end().line_break();
  draw_legend(svg, layout, spec.name);
  int lane = 0;
  for (const Edge& edge : edges) draw_line(svg, path_of(edge, layout, lane), *edge.style, true);
  std::map<std::string, std::size_t> fills;
  for (const StageSpec& stage : spec.stages) {
    const std::size_t fill = fills.emplace(location_of(stage), fills.size()).first->second;
    draw_box(svg, stage, layout.boxes[stage.name], stage.name == spec.entry, kFills[fill % std::size(kFills)]);
  }
  return svg.end().line_break().take();
}

}  // namespace millrace
