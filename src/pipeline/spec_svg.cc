// The picture of a pipeline as SVG: a column of boxes for each step of the way, edges between them.
//
// No edge passes behind a box. Between two columns is a gap without boxes, in which an edge to the next column bends.
// One that goes further passes below all boxes, in a lane of its own, and bends in the gaps at its two ends alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/xml_text.h"
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
  const char* dashes;  // an attribute, or none
  int dy;              // from the middle of a box
  const char* label;
};
constexpr EdgeStyle kPayload{"payload", "#334155", "", -6, "payloads"};
constexpr EdgeStyle kStream{"stream", "#0369a1", " stroke-dasharray=\"5 4\"", 12, "streams dashed"};
constexpr EdgeStyle kPages{"pages", "#15803d", " stroke-dasharray=\"2 3\"", 3, "KV pages dotted"};
constexpr EdgeStyle kFeatures{"features", "#7e22ce", " stroke-dasharray=\"2 3\"", 3, "features dotted"};
constexpr EdgeStyle kRows{"rows", "#b45309", " stroke-dasharray=\"2 3\"", 3, "rows of layers dotted"};

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

std::string line(std::string_view path, const EdgeStyle& style, bool arrow) {
  return fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{}{}/>\n", path, style.color,
                     style.dashes, arrow ? fmt::format(" marker-end=\"url(#{})\"", style.marker) : "");
}

std::string marker(const EdgeStyle& style) {
  return fmt::format(
      "<marker id=\"{}\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" "
      "orient=\"auto\"><path d=\"M0 0 L10 5 L0 10 z\" fill=\"{}\"/></marker>\n",
      style.marker, style.color);
}

std::string draw_legend(const Layout& layout, std::string_view name) {
  std::string out =
      fmt::format("<text x=\"{}\" y=\"26\" font-size=\"15\" font-weight=\"bold\">{}</text>\n", kMargin, xml_text(name));
  for (const Item& item : layout.legend) {
    const int sample = item.style != nullptr ? kSampleWidth : 0;
    if (sample > 0) out += line(fmt::format("M{} {} h{}", item.x, item.y - 4, sample - 6), *item.style, false);
    out += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"12\" fill=\"#475569\">{}</text>\n", item.x + sample, item.y,
                       item.text);
  }
  return out;
}

std::string box(const StageSpec& stage, const Box& at, bool entry, const char* fill) {
  const int middle = at.x + kBoxWidth / 2;
  std::string out = fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\" fill=\"{}\" stroke=\"#334155\" "
      "stroke-width=\"{}\"/>\n",
      at.x, at.y, kBoxWidth, kBoxHeight, stage.terminal ? 26 : 7, fill, entry ? 2.4 : 1.2);
  const auto text = [&](int dy, const char* style, const std::string& shown) {
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" {}>{}</text>\n", middle, at.y + dy, style,
                       xml_text(shown));
  };
  text(21, "font-size=\"14\" font-weight=\"bold\"", stage.name);
  text(37, "font-size=\"11\"", worker_line(stage));
  text(51, "font-size=\"10\" fill=\"#475569\"", location_line(stage));
  return out;
}

}  // namespace

std::string to_svg(const PipelineSpec& spec) {
  const std::vector<Edge> edges = edges_of(spec);
  Layout layout = layout_of(spec, edges);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\">\n<defs>\n",
      layout.width, layout.height);
  for (const Item& item : layout.legend) out += item.style != nullptr ? marker(*item.style) : "";
  out += fmt::format("</defs>\n<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", layout.width, layout.height);
  out += draw_legend(layout, spec.name);
  int lane = 0;
  for (const Edge& edge : edges) out += line(path_of(edge, layout, lane), *edge.style, true);
  std::map<std::string, std::size_t> fills;
  for (const StageSpec& stage : spec.stages) {
    const std::size_t fill = fills.emplace(location_of(stage), fills.size()).first->second;
    out += box(stage, layout.boxes[stage.name], stage.name == spec.entry, kFills[fill % std::size(kFills)]);
  }
  return out + "</svg>\n";
}

}  // namespace millrace
