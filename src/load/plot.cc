// The picture of a load test: how the three times are distributed, and the tokens that came over time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/xml_text.h"
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

std::string grid(const Axis& x, const Axis& y) {
  std::string out;
  for (const double value : y.ticks()) {
    const double at = kHeight - y.position(value) * kHeight;
    out += fmt::format(R"svg(<line x1="0" x2="{:.0f}" y1="{:.1f}" y2="{:.1f}" stroke="#e2e8f0"/>)svg", kWidth, at, at);
    out += fmt::format(R"svg(<text x="-6" y="{:.1f}" text-anchor="end">{:g}</text>)svg", at + 4, value);
  }
  for (const double value : x.ticks()) {
    const double at = x.position(value) * kWidth;
    out += fmt::format(R"svg(<line x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1:.0f}" stroke="#f1f5f9"/>)svg", at, kHeight);
    out +=
        fmt::format(R"svg(<text x="{:.1f}" y="{:.0f}" text-anchor="middle">{:g}</text>)svg", at, kHeight + 16, value);
  }
  out += fmt::format(R"svg(<text x="{:.0f}" y="{:.0f}" text-anchor="middle">{}{}</text>)svg", kWidth / 2, kHeight + 32,
                     x.name, x.logarithmic ? ", logarithmic" : "");
  return out + fmt::format(R"svg(<text x="{:.0f}" y="-10" text-anchor="end">{}</text>)svg", kWidth, y.name);
}

// Lines from the top to the bottom. Their words stand below each other, where the curve is not: at the left of a mark
// in the right half, since a distribution rises to the right.
std::string marks_of(const Axis& x, const std::vector<Mark>& marks) {
  std::string out;
  double y = kHeight - 8;
  for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark, y -= 15) {
    const double at = x.position(mark->value) * kWidth;
    const bool left = at > kWidth * 0.75;
    out += fmt::format(
        R"svg(<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1:.0f}" stroke="#b45309" stroke-dasharray="3 3"/>)svg",
        at, kHeight);
    out += fmt::format(
        R"svg(<text x="{:.1f}" y="{:.0f}" text-anchor="{}" fill="#92400e" stroke="white" stroke-width="3" paint-order="stroke">{} {:.4g}</text>)svg",
        at + (left ? -4 : 4), y, left ? "end" : "start", mark->name, mark->value);
  }
  return out;
}

// One set of axes at column `at`, with its curve and marks. Points are in the units of the axes.
std::string panel(int at, std::string_view title, const Axis& x, const Axis& y,
                  const std::vector<std::pair<double, double>>& points, const std::vector<Mark>& marks) {
  const int row = at / 2, column = at % 2;
  const double left = kLeft + column * (kWidth + kGap), top = kTop + row * (kHeight + kGap);
  std::string out = fmt::format(R"svg(<g transform="translate({:.0f},{:.0f})">)svg", left, top);
  out += fmt::format(R"svg(<text x="0" y="-10" font-weight="bold">{}</text>)svg", title);
  out += grid(x, y);
  out += R"svg(<polyline fill="none" stroke="#2563eb" stroke-width="1.8" points=")svg";
  for (const auto& [across, up] : points) {
    out += fmt::format("{:.1f},{:.1f} ", x.position(across) * kWidth, kHeight - y.position(up) * kHeight);
  }
  return out + "\"/>" + marks_of(x, marks) + "</g>\n";
}

// The share of values up to x.
std::string distribution(int at, std::string_view title, std::vector<double> values, const Quantiles& q,
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
  return panel(at, title, x, {"% of them", 0, 100}, points, marks);
}

// When each token with text came, as tokens a second in equal stretches.
std::string timeline(int at, const std::vector<Outcome>& outcomes) {
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
  return panel(at, "Events with text over time", {"seconds", 0, round_up(stretch_s * kStretches)},
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
  std::string out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0f} {:.0f}" font-family="sans-serif" font-size="11">)"
      R"(<rect width="100%" height="100%" fill="white"/><text x="20" y="24" font-size="15">{}</text>)"
      R"(<text x="20" y="42">{}</text>)"
      R"(<text x="20" y="58">{} requests, {} failed, {:.2f} requests/s, {:.1f} tokens/s out</text>)",
      width, height, xml_text(title.headline), xml_text(title.options), s.requests, s.failed, s.requests_per_s,
      s.answer_tokens_per_s);
  out += distribution(0, "Time to first token", std::move(first), s.ttft_ms, false);
  out += distribution(1, "Inter-token", std::move(gaps), s.inter_token_ms, true);
  out += distribution(2, "End to end", std::move(end_to_end), s.end_to_end_ms, false);
  out += timeline(3, outcomes);
  return out + "</svg>\n";
}

}  // namespace millrace::load
