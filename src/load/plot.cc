// The picture of a load test: how the three times are distributed, and the tokens that came over time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/svg.h"
#include "load/report.h"

namespace millrace::load {
namespace {

constexpr double kWidth = 380, kHeight = 200, kGap = 70, kLeft = 60, kTop = 92;
constexpr int kPoints = 200;     // of a curve
constexpr int kStretches = 100;  // that the test's time is cut into
constexpr int kTicks = 4;
constexpr double kLeastMs = 1e-3;  // the clock's step: a shorter gap is shown as this

// A round number of at least `value`: 1, 2 or 5 times a power of ten.
double round_up(double value) {
  if (!(value > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (value <= step * power) return step * power;
  }
  return 10 * power;
}

// One axis: what it is called, its ends, and whether equal factors are equally far apart.
struct Axis {
  std::string_view name;
  double low = 0, high = 1;
  bool logarithmic = false;

  // 0 at its beginning, 1 at its end.
  double position(double value) const {
    const double at =
        logarithmic ? std::log(std::max(value, low) / low) / std::log(high / low) : (value - low) / (high - low);
    return std::clamp(at, 0.0, 1.0);
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (!logarithmic) {
      for (int i = 0; i <= kTicks; ++i) out.push_back(low + (high - low) * i / kTicks);
      return out;
    }
    const bool short_axis = high / low < 1000;  // then 2 and 5 have space too
    for (double power = low; power < high * 1.001; power *= 10) {
      for (const double step : {1.0, 2.0, 5.0}) {
        if (step * power < high * 1.001 && (step == 1 || short_axis)) out.push_back(step * power);
      }
    }
    return out;
  }
};

// From the power of ten below the least value to the one above the largest.
Axis decades(std::string_view name, double least, double largest) {
  const double low = std::pow(10, std::floor(std::log10(std::max(least, kLeastMs))));
  const double high = std::pow(10, std::ceil(std::log10(std::max(largest, low * 10))));
  return {name, low, high, true};
}

// A value with a name that is marked on the x axis.
struct Mark {
  std::string_view name;
  double value = 0;
};

// Ends an open text element: `text` anchored at its end or middle.
void end_label(SvgWriter& svg, std::string_view anchor, std::string_view text) {
  svg.attribute("text-anchor", anchor).text(text).end();
}

void grid(SvgWriter& svg, const Axis& x, const Axis& y) {
  for (const double value : y.ticks()) {
    const double at = kHeight - y.position(value) * kHeight;
    svg.begin("line").attribute("x1", 0).attribute("x2", kWidth).attribute("y1", at, 1).attribute("y2", at, 1);
    svg.attribute("stroke", "#e2e8f0").end();
    end_label(svg.begin("text").attribute("x", -6).attribute("y", at + 4, 1), "end", fmt::format("{:g}", value));
  }
  for (const double value : x.ticks()) {
    const double at = x.position(value) * kWidth;
    svg.begin("line").attribute("x1", at, 1).attribute("x2", at, 1).attribute("y1", 0).attribute("y2", kHeight);
    svg.attribute("stroke", "#f1f5f9").end();
    end_label(svg.begin("text").attribute("x", at, 1).attribute("y", kHeight + 16), "middle",
              fmt::format("{:g}", value));
  }
  end_label(svg.begin("text").attribute("x", kWidth / 2).attribute("y", kHeight + 32), "middle",
            fmt::format("{}{}", x.name, x.logarithmic ? ", logarithmic" : ""));
  end_label(svg.begin("text").attribute("x", kWidth).attribute("y", -10), "end", y.name);
}

// Lines from the top to the bottom. Their words stand below each other, where the curve is not: at the left of a mark
// in the right half, since a distribution rises to the right.
void draw_marks(SvgWriter& svg, const Axis& x, const std::vector<Mark>& marks) {
  double y = kHeight - 8;
  for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark, y -= 15) {
    const double at = x.position(mark->value) * kWidth;
    const bool left = at > kWidth * 0.75;
    svg.begin("line").attribute("class", "mark").attribute("x1", at, 1).attribute("x2", at, 1).attribute("y1", 0);
    svg.attribute("y2", kHeight).attribute("stroke", "#b45309").attribute("stroke-dasharray", "3 3").end();
    svg.begin("text").attribute("x", at + (left ? -4 : 4), 1).attribute("y", y);
    svg.attribute("text-anchor", left ? "end" : "start").attribute("fill", "#92400e").attribute("stroke", "white");
    svg.attribute("stroke-width", 3).attribute("paint-order", "stroke");
    svg.text(fmt::format("{} {:.4g}", mark->name, mark->value)).end();
  }
}

// One set of axes at column `at`, with its curve and marks. Points are in the units of the axes.
void panel(SvgWriter& svg, int at, std::string_view title, const Axis& x, const Axis& y,
           const std::vector<std::pair<double, double>>& points, const std::vector<Mark>& marks) {
  const int row = at / 2, column = at % 2;
  const double left = kLeft + column * (kWidth + kGap), top = kTop + row * (kHeight + kGap);
  svg.begin("g").attribute("transform", fmt::format("translate({:.0f},{:.0f})", left, top));
  svg.begin("text").attribute("x", 0).attribute("y", -10).attribute("font-weight", "bold").text(title).end();
  grid(svg, x, y);
  std::string curve;
  for (const auto& [across, up] : points) {
    curve += fmt::format("{:.1f},{:.1f} ", x.position(across) * kWidth, kHeight - y.position(up) * kHeight);
  }
  svg.begin("polyline").attribute("fill", "none").attribute("stroke", "#2563eb").attribute("stroke-width", 1.8, 1);
  svg.attribute("points", curve).end();
  draw_marks(svg, x, marks);
  svg.end().line_break();
}

// The share of values up to x.
void distribution(SvgWriter& svg, int at, std::string_view title, std::vector<double> values, const Quantiles& q,
                  bool logarithmic) {
  std::sort(values.begin(), values.end());
  std::vector<std::pair<double, double>> points;
  const std::size_t n = values.size();
  for (int i = 0; n > 0 && i <= kPoints; ++i) {
    const std::size_t index =
        std::min(n - 1, static_cast<std::size_t>(static_cast<double>(i) / kPoints * static_cast<double>(n)));
    points.emplace_back(values[index], 100.0 * static_cast<double>(index + 1) / static_cast<double>(n));
  }
  // The last hundredth is left out of a linear axis: it would hide the others.
  Axis x{"milliseconds", 0, round_up(n > 0 ? q.p99 : 0)};
  if (logarithmic) x = decades("milliseconds", n > 0 ? values.front() : 1, n > 0 ? values.back() : 1);
  std::vector<Mark> marks;
  if (n > 0) marks = {{"p50", q.p50}, {"p90", q.p90}, {"p99", q.p99}};
  panel(svg, at, title, x, {"% of them", 0, 100}, points, marks);
}

// When each token with text came, as tokens a second in equal stretches.
void timeline(SvgWriter& svg, int at, const std::vector<Outcome>& outcomes) {
  int64_t end = 1;
  for (const Outcome& one : outcomes) end = std::max(end, one.end_us);
  std::vector<double> counts(kStretches);
  const auto add = [&](int64_t at_us) {
    ++counts[static_cast<std::size_t>(std::min<int64_t>(kStretches - 1, at_us * kStretches / end))];
  };
  for (const Outcome& one : outcomes) {
    if (one.first_us < 0) continue;
    int64_t now = one.first_us;
    add(now);
    for (const int32_t gap : one.gaps_us) add(now += gap);
  }
  const double stretch_s = static_cast<double>(end) / 1e6 / kStretches;
  std::vector<std::pair<double, double>> points;
  double high = 0;
  for (int i = 0; i < kStretches; ++i) {
    points.emplace_back((i + 0.5) * stretch_s, counts[static_cast<std::size_t>(i)] / stretch_s);
    high = std::max(high, points.back().second);
  }
  panel(svg, at, "Events with text over time", {"seconds", 0, round_up(stretch_s * kStretches)},
        {"a second", 0, round_up(high)}, points, {});
}

}  // namespace

std::string to_svg(const Summary& s, const PlotTitle& title, const std::vector<Outcome>& outcomes) {
  std::vector<double> first, gaps, end_to_end;
  for (const Outcome& one : outcomes) {
    if (!one.error.empty()) continue;
    if (one.first_us >= 0) first.push_back(static_cast<double>(one.first_us - one.begin_us) / 1e3);
    end_to_end.push_back(static_cast<double>(one.end_us - one.begin_us) / 1e3);
    for (const int32_t gap : one.gaps_us) gaps.push_back(gap / 1e3);
  }
  const double width = kLeft + 2 * kWidth + kGap + 30, height = kTop + 2 * (kHeight + kGap);
  SvgWriter svg;
  svg.begin("svg").attribute("xmlns", "http://www.w3.org/2000/svg");
  svg.attribute("viewBox", fmt::format("0 0 {:.0f} {:.0f}", width, height));
  svg.attribute("font-family", "sans-serif").attribute("font-size", 11);
  svg.begin("rect").attribute("width", "100%").attribute("height", "100%").attribute("fill", "white").end();
  svg.begin("text").attribute("x", 20).attribute("y", 24).attribute("font-size", 15).text(title.headline).end();
  svg.begin("text").attribute("x", 20).attribute("y", 42).text(title.options).end();
  svg.begin("text").attribute("x", 20).attribute("y", 58);
  svg.text(fmt::format("{} requests, {} failed, {:.2f} requests/s, {:.1f} tokens/s out", s.requests, s.failed,
                       s.requests_per_s, s.answer_tokens_per_s));
  svg.end();
  distribution(svg, 0, "Time to first token", std::move(first), s.ttft_ms, false);
  distribution(svg, 1, "Inter-token", std::move(gaps), s.inter_token_ms, true);
  distribution(svg, 2, "End to end", std::move(end_to_end), s.end_to_end_ms, false);
  timeline(svg, 3, outcomes);
  return svg.end().line_break().take();
}

}  // namespace millrace::load
