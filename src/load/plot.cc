// The picture of a load test: how the three times are distributed, and the tokens that came over time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "load/report.h"

namespace millrace::load {
namespace {

constexpr double kWidth = 380, kHeight = 200, kGap = 70, kLeft = 60, kTop = 70;
constexpr int kPoints = 200;     // of a curve
constexpr int kStretches = 100;  // that the test's time is cut into
constexpr int kTicks = 4;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    }
  }
  return out;
}

// A round number of at least `value`: 1, 2 or 5 times a power of ten.
double round_up(double value) {
  if (!(value > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (value <= step * power) return step * power;
  }
  return 10 * power;
}

// One set of axes at column `at`, with its curve. Points are in the units of the axes.
std::string panel(int at, std::string_view title, std::string_view x_name, double x_max, std::string_view y_name,
                  double y_max, const std::vector<std::pair<double, double>>& points) {
  const double left = kLeft + at % 2 * (kWidth + kGap), top = kTop + at / 2 * (kHeight + kGap);
  std::string out = fmt::format(R"svg(<g transform="translate({:.0f},{:.0f})">)svg", left, top);
  out += fmt::format(R"svg(<text x="0" y="-10" font-weight="bold">{}</text>)svg", title);
  for (int i = 0; i <= kTicks; ++i) {
    const double share = static_cast<double>(i) / kTicks;
    const double x = share * kWidth, y = kHeight - share * kHeight;
    out += fmt::format(R"svg(<line x1="0" x2="{:.0f}" y1="{:.1f}" y2="{:.1f}" stroke="#e2e8f0"/>)svg", kWidth, y, y);
    out += fmt::format(R"svg(<text x="-6" y="{:.1f}" text-anchor="end">{:g}</text>)svg", y + 4, share * y_max);
    out += fmt::format(R"svg(<text x="{:.1f}" y="{:.0f}" text-anchor="middle">{:g}</text>)svg", x, kHeight + 16,
                       share * x_max);
  }
  out += fmt::format(R"svg(<text x="{:.0f}" y="{:.0f}" text-anchor="middle">{}</text>)svg", kWidth / 2, kHeight + 32,
                     x_name);
  out += fmt::format(R"svg(<text x="{:.0f}" y="-10" text-anchor="end">{}</text>)svg", kWidth, y_name);
  out += R"svg(<polyline fill="none" stroke="#2563eb" stroke-width="1.8" points=")svg";
  for (const auto& [x, y] : points) {
    out +=
        fmt::format("{:.1f},{:.1f} ", std::min(1.0, x / x_max) * kWidth, kHeight - std::min(1.0, y / y_max) * kHeight);
  }
  return out + "\"/></g>\n";
}

// The share of values up to x. The last hundredth is left out of the axis: it would hide the others.
std::string distribution(int at, std::string_view title, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::vector<std::pair<double, double>> points;
  const std::size_t n = values.size();
  for (int i = 0; n > 0 && i <= kPoints; ++i) {
    const std::size_t index =
        std::min(n - 1, static_cast<std::size_t>(static_cast<double>(i) / kPoints * static_cast<double>(n)));
    points.emplace_back(values[index], 100.0 * static_cast<double>(index + 1) / static_cast<double>(n));
  }
  const double high = n > 0 ? values[std::min(n - 1, n * 99 / 100)] : 0;
  return panel(at, title, "milliseconds", round_up(high), "% of them", 100, points);
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
  return panel(at, "Events with text over time", "seconds", round_up(stretch_s * kStretches), "a second",
               round_up(high), points);
}

}  // namespace

std::string to_svg(const Summary& s, const std::string& title, const std::vector<Outcome>& outcomes) {
  std::vector<double> first, gaps, whole;
  for (const Outcome& one : outcomes) {
    if (!one.error.empty()) continue;
    if (one.first_us >= 0) first.push_back(static_cast<double>(one.first_us - one.begin_us) / 1e3);
    whole.push_back(static_cast<double>(one.end_us - one.begin_us) / 1e3);
    for (const int32_t gap : one.gaps_us) gaps.push_back(gap / 1e3);
  }
  const double width = kLeft + 2 * kWidth + kGap + 30, height = kTop + 2 * (kHeight + kGap);
  std::string out = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {:.0f} {:.0f}" font-family="sans-serif" font-size="11">)"
      R"(<rect width="100%" height="100%" fill="white"/><text x="20" y="24" font-size="15">{}</text>)"
      R"(<text x="20" y="42">{} requests, {} failed, {:.2f} requests/s, {:.1f} tokens/s out</text>)",
      width, height, escaped(title), s.requests, s.failed, s.requests_per_s, s.answer_tokens_per_s);
  out += distribution(0, "Time to first token", std::move(first));
  out += distribution(1, "Inter-token", std::move(gaps));
  out += distribution(2, "End to end", std::move(whole));
  out += timeline(3, outcomes);
  return out + "</svg>\n";
}

}  // namespace millrace::load
