#include "app/top_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/server_answer.h"
#include "app/top_line.h"

namespace millrace {
namespace {

constexpr double kRateMs = 1500;  // a rate is of so long
constexpr std::size_t kSparkWidth = 30;
constexpr int kFixedColumns = 58;  // of the list of requests, beside the name

const Json& member(const Json& object, std::string_view key) {
  static const Json kNull;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() ? *found : kNull;
}
double number(const Json& object, std::string_view key) {
  const Json& value = member(object, key);
  return value.is_number() ? value.get<double>() : 0;
}
std::string text(const Json& object, std::string_view key) {
  const Json& value = member(object, key);
  return value.is_string() ? printable(value.get<std::string>()) : "";
}
// The elements of a list; of anything else none.
const Json& list(const Json& object, std::string_view key) {
  static const Json kEmpty = Json::array();
  const Json& value = member(object, key);
  return value.is_array() ? value : kEmpty;
}

// Of all schedulers together.
double total(const Json& event, std::string_view key) {
  double sum = 0;
  for (const Json& one : list(event, "schedulers")) sum += number(member(one, "state"), key);
  return sum;
}

std::string duration(double seconds) {
  if (seconds < 0.00995) return fmt::format("{:.1f} ms", seconds * 1000);
  if (seconds < 0.0995) return fmt::format("{:.0f} ms", seconds * 1000);
  if (seconds < 9.95) return fmt::format("{:.{}f} s", seconds, seconds < 0.995 ? 2 : 1);
  if (seconds < 5400) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.1f} h", seconds / 3600);
}

void header(TopLines& lines, const Json& event) {
  TopLine& line = lines.next();
  line.add(fmt::format("millrace {}", text(event, "model")), TopStyle::kBold);
  const bool ready = member(event, "ready") == true;
  line.add(ready ? "  ready" : "  " + text(event, "reason"), ready ? TopStyle::kGood : TopStyle::kBad);
  line.add(fmt::format("  {:.0f} running, {:.0f} waiting", total(event, "running"),
                       total(event, "waiting") + total(event, "preparing")));
  const Json& weights = member(event, "weights");
  std::string label = text(weights, "weight_version");
  if (label.empty()) {
    for (const Json& one : list(event, "schedulers")) {
      label = fmt::format("{:.0f}", number(member(one, "state"), "weight_version"));
    }
  }
  line.add(fmt::format("  weights {}{}", label, member(weights, "paused") == true ? ", paused" : ""), TopStyle::kDim);
}

void stages(TopLines& lines, const Json& event) {
  TopLine& line = lines.next();
  line.label("stages");
  bool first = true;
  for (const Json& stage : list(event, "stages")) {
    if (!std::exchange(first, false)) line.add("   ");
    const std::string state = text(stage, "state");
    line.add(text(stage, "stage"), TopStyle::kBold);
    line.add(" " + state, state == "ready" ? TopStyle::kGood : TopStyle::kBad);
    line.add(fmt::format(" {:.0f}+{:.0f}", number(stage, "running"), number(stage, "waiting")), TopStyle::kDim);
  }
}

void pages(TopLines& lines, const Json& one, const std::string& label, int columns) {
  const Json& pages = member(member(one, "state"), "pages");
  const double all = std::max(1.0, number(pages, "total"));
  TopLine& line = lines.next();
  line.label(label);
  const int width = std::clamp(columns - 72, 10, 60);
  int drawn = 0;
  double below = 0;
  const auto bar = [&](std::string_view name, const char* glyph, TopStyle style) {
    below += number(pages, name);
    const int end = static_cast<int>(std::lround(below / all * width));
    for (; drawn < end; ++drawn) line.add(glyph, style);
  };
  bar("running", "█", TopStyle::kRun), bar("importing", "▓", TopStyle::kWarm), bar("cached", "▒", TopStyle::kCool);
  bar("free", "·", TopStyle::kDim);
  line.add(fmt::format("  {:.0f} running, {:.0f} cached, {:.0f} free of {:.0f} pages", number(pages, "running"),
                       number(pages, "cached"), number(pages, "free"), number(pages, "total")));
}

// A column each for the last steps, as high as it has rows.
void batches(TopLines& lines, const Json& one, const std::string& label, int columns) {
  const Json& steps = list(member(one, "state"), "steps");
  const std::size_t width = static_cast<std::size_t>(std::clamp(columns - 60, 10, 80));
  const std::size_t shown = std::min(width, steps.size());
  const auto rows = [&](std::size_t i, std::size_t kind) {
    const Json& step = steps[steps.size() - shown + i];
    return step.is_array() && step.size() > kind && step[kind].is_number() ? step[kind].get<double>() : 0;
  };
  double top = 1;
  for (std::size_t i = 0; i < shown; ++i) top = std::max(top, rows(i, 1) + rows(i, 2));
  TopLine& line = lines.next();
  line.label(label);
  for (std::size_t i = 0; i < shown; ++i) {
    const double prefill = rows(i, 1), decode = rows(i, 2);
    line.add(spark_glyph(std::sqrt((prefill + decode) / top)), prefill > 0 ? TopStyle::kWarm : TopStyle::kRun);
  }
  if (shown == 0) return line.add("no step yet", TopStyle::kDim);
  line.add(fmt::format("  step {:.0f}: {:.0f} prefill + {:.0f} decode rows", rows(shown - 1, 0), rows(shown - 1, 1),
                       rows(shown - 1, 2)));
}

void schedulers(TopLines& lines, const Json& event, int columns) {
  const Json& all = list(event, "schedulers");
  for (const Json& one : all) {
    const std::string of = all.size() > 1 ? " " + text(one, "stage") : "";
    if (const std::string error = text(one, "error"); !error.empty()) {
      lines.next().add(text(one, "stage") + ": " + error, TopStyle::kBad);
      continue;
    }
    pages(lines, one, "pages" + of, columns);
    batches(lines, one, "batches" + of, columns);
  }
}

void latencies(TopLines& lines, const Json& event) {
  TopLine& line = lines.next();
  line.label("latency");
  line.add("p50 p90 p99   ", TopStyle::kDim);
  bool first = true;
  for (const auto& [key, name] :
       {std::pair{"time_to_first_token", "first token"}, {"inter_token", "between tokens"}, {"end_to_end", "answer"}}) {
    const Json& histogram = member(member(event, "latency"), key);
    if (number(histogram, "count") == 0) continue;
    line.add(fmt::format("{}{} ", std::exchange(first, false) ? "" : "   ", name), TopStyle::kDim);
    line.add(fmt::format("{} {} {}", duration(number(histogram, "p50")), duration(number(histogram, "p90")),
                         duration(number(histogram, "p99"))));
  }
  if (first) line.add("nothing was measured yet", TopStyle::kDim);
}

int rank(const std::string& state) {
  static const std::vector<std::string> kStates = {"decoding", "prefilling", "queued"};
  return static_cast<int>(std::ranges::find(kStates, state) - kStates.begin());
}

// By the engine's id, the name that means the fewest of them.
std::map<int64_t, std::string> names_of(const Json& event) {
  std::map<int64_t, std::pair<std::size_t, std::string>> found;
  for (const Json& named : list(event, "requests")) {
    const Json& ids = list(named, "ids");
    for (const Json& id : ids) {
      if (!id.is_number_integer()) continue;
      auto& [count, name] = found[id.get<int64_t>()];
      if (count == 0 || count > ids.size()) count = ids.size(), name = text(named, "name");
    }
  }
  std::map<int64_t, std::string> out;
  for (auto& [id, name] : found) out.emplace(id, std::move(name.second));
  return out;
}

std::string output_of(const Json& request) {
  if (text(request, "state") == "prefilling") {
    return fmt::format("{:.0f} of {:.0f}", number(request, "computed"), number(request, "to_compute"));
  }
  return fmt::format("{:.0f} of {:.0f}", number(request, "output_tokens"), number(request, "max_tokens"));
}

void requests(TopLines& lines, const Json& event, const TopSize& size) {
  const auto names = names_of(event);
  std::vector<const Json*> rows;
  for (const Json& one : list(event, "schedulers")) {
    for (const Json& request : list(member(one, "state"), "requests")) rows.push_back(&request);
  }
  std::ranges::stable_sort(rows, {}, [](const Json* request) { return rank(text(*request, "state")); });
  const int name_width = std::clamp(size.columns - kFixedColumns, 8, 48);
  lines.next();
  lines.next().add(fmt::format("{:<10} {:<{}} {:>8} {:>8} {:>15} {:>10}", "STATE", "REQUEST", name_width, "PROMPT",
                               "CACHED", "DONE", "AGE"),
                   TopStyle::kDim);
  const std::size_t fit =
      size.rows == 0 ? rows.size() : static_cast<std::size_t>(std::max(1, size.rows - lines.count() - 1));
  for (std::size_t i = 0; i < std::min(rows.size(), fit); ++i) {
    const Json& request = *rows[i];
    const auto id = static_cast<int64_t>(number(request, "id"));
    const auto named = names.find(id);
    const std::string name = named == names.end() ? fmt::format("#{}", id) : named->second;
    const std::string state = text(request, "state");
    TopLine& line = lines.next();
    line.add(fmt::format("{:<10} ", state), state == "decoding"     ? TopStyle::kRun
                                            : state == "prefilling" ? TopStyle::kWarm
                                                                    : TopStyle::kDim);
    line.add_padded(name, name_width);
    line.add(fmt::format(" {:>8.0f} {:>8.0f} {:>15} {:>10}", number(request, "prompt_tokens"),
                         number(request, "cached_tokens"), output_of(request), duration(number(request, "age_s"))));
  }
  if (rows.size() > fit) lines.next().add(fmt::format("and {} more", rows.size() - fit), TopStyle::kDim);
  if (rows.empty()) lines.next().add("no request runs or waits", TopStyle::kDim);
}

}  // namespace

void TopFrame::add(const Json& event) {
  event_ = std::make_shared<const Json>(event);
  const Point point{number(event, "time_ms"), total(event, "generated_tokens_total"),
                    total(event, "prefill_rows_total")};
  // A scheduler that came or went changed the totals: what was before does not count.
  const bool goes_on =
      !points_.empty() && point.time_ms > points_.back().time_ms && point.generated >= points_.back().generated;
  if (!goes_on) points_.clear();
  points_.push_back(point);
  if (points_.size() > kMaxTopPoints) points_.pop_front();
}

// How much a second until the point `at`, over kRateMs at most or one event.
double TopFrame::rate(std::size_t at, double Point::*value) const {
  if (at == 0) return 0;
  std::size_t from = at - 1;
  while (from > 0 && points_[at].time_ms - points_[from].time_ms < kRateMs) --from;
  return (points_[at].*value - points_[from].*value) * 1000 / (points_[at].time_ms - points_[from].time_ms);
}

std::string TopFrame::spark(double Point::*value, std::size_t width) const {
  const std::size_t count = std::min(width, points_.empty() ? 0 : points_.size() - 1);
  double top = 1;
  for (std::size_t i = points_.size() - count; i < points_.size(); ++i) top = std::max(top, rate(i, value));
  std::string out;
  for (std::size_t i = points_.size() - count; i < points_.size(); ++i) out += spark_glyph(rate(i, value) / top);
  return out;
}

std::string TopFrame::render(const TopSize& size) const {
  if (event_ == nullptr) return "";
  const Json& event = *event_;
  TopLines lines(size.columns, size.color);
  header(lines, event);
  lines.next();
  const std::size_t last = points_.empty() ? 0 : points_.size() - 1;
  const auto tokens = [&](const char* label, double Point::*value) {
    TopLine& line = lines.next();
    line.label(label);
    line.add(fmt::format("{:>7.0f} tokens/s  ", rate(last, value)), TopStyle::kBold);
    line.add(spark(value, kSparkWidth), TopStyle::kRun);
    return &line;
  };
  tokens("generated", &Point::generated);
  TopLine* prompts = tokens("prompts", &Point::prefilled);
  const double prompt = total(event, "prompt_tokens_total");
  if (prompt > 0) {
    prompts->add(fmt::format("  {:.0f} % from the cache", 100 * total(event, "cached_tokens_total") / prompt));
  }
  schedulers(lines, event, size.columns);
  latencies(lines, event);
  stages(lines, event);
  requests(lines, event, size);
  return lines.text();
}

}  // namespace millrace
