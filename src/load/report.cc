#include "load/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/json.h"

namespace millrace::load {
namespace {

constexpr std::size_t kMaxErrorsListed = 5;

// The nearest rank: the smallest value that at least a share q of them does not exceed.
double rank(const std::vector<double>& sorted, double q) {
  const auto n = static_cast<double>(sorted.size());
  const auto at = static_cast<std::size_t>(std::max(0.0, std::ceil(q * n) - 1));
  return sorted[std::min(at, sorted.size() - 1)];
}

std::string row(std::string_view name, const Quantiles& q) {
  return fmt::format("{:<22}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}\n", name, q.mean, q.p50, q.p90,
                     q.p95, q.p99, q.max);
}

std::string json_of(const Quantiles& q) {
  return fmt::format(R"({{"mean":{:.3f},"p50":{:.3f},"p90":{:.3f},"p95":{:.3f},"p99":{:.3f},"max":{:.3f}}})", q.mean,
                     q.p50, q.p90, q.p95, q.p99, q.max);
}

}  // namespace

Quantiles quantiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          .p50 = rank(values, 0.5),
          .p90 = rank(values, 0.9),
          .p95 = rank(values, 0.95),
          .p99 = rank(values, 0.99),
          .max = values.back()};
}

Summary summarize(const std::vector<Outcome>& outcomes) {
  Summary out;
  out.requests = static_cast<int64_t>(outcomes.size());
  std::vector<double> first, gaps, end_to_end;
  std::map<std::string, int64_t> errors;
  int64_t begin = INT64_MAX, end = 0, prompt = 0, answer = 0;
  for (const Outcome& one : outcomes) {
    begin = std::min(begin, one.begin_us);
    end = std::max(end, one.end_us);
    if (!one.error.empty()) {
      ++out.failed;
      ++errors[one.error];
      continue;
    }
    prompt += one.prompt_tokens;
    answer += one.answer_tokens;
    if (one.first_us >= 0) first.push_back(static_cast<double>(one.first_us - one.begin_us) / 1e3);
    end_to_end.push_back(static_cast<double>(one.end_us - one.begin_us) / 1e3);
    for (const int32_t gap : one.gaps_us) gaps.push_back(gap / 1e3);
  }
  out.errors.assign(errors.begin(), errors.end());
  std::stable_sort(out.errors.begin(), out.errors.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (out.errors.size() > kMaxErrorsListed) out.errors.resize(kMaxErrorsListed);
  out.ttft_ms = quantiles(std::move(first));
  out.inter_token_ms = quantiles(std::move(gaps));
  out.end_to_end_ms = quantiles(std::move(end_to_end));
  if (out.requests == 0 || end <= begin) return out;
  out.seconds = static_cast<double>(end - begin) / 1e6;
  out.requests_per_s = static_cast<double>(out.requests - out.failed) / out.seconds;
  out.prompt_tokens_per_s = static_cast<double>(prompt) / out.seconds;
  out.answer_tokens_per_s = static_cast<double>(answer) / out.seconds;
  return out;
}

std::string to_text(const Summary& s) {
  std::string out =
      fmt::format("{} requests in {:.2f} s, {} failed: {:.2f} requests/s, {:.1f} tokens/s in, {:.1f} tokens/s out\n",
                  s.requests, s.seconds, s.failed, s.requests_per_s, s.prompt_tokens_per_s, s.answer_tokens_per_s);
  out += fmt::format("{:<22}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "mean", "p50", "p90", "p95", "p99",
                     "max");
  out += row("time to first token", s.ttft_ms);
  out += row("inter-token", s.inter_token_ms);
  out += row("end to end", s.end_to_end_ms);
  for (const auto& [error, count] : s.errors) out += fmt::format("{} x {}\n", count, error);
  return out;
}

std::string to_json(const Summary& s, const std::string& about, const std::vector<Outcome>& outcomes) {
  std::string out = fmt::format(
      R"({{"about":{},"requests":{},"failed":{},"seconds":{:.6f},"requests_per_s":{:.3f},"prompt_tokens_per_s":{:.3f},)"
      R"("answer_tokens_per_s":{:.3f},"ttft_ms":{},"inter_token_ms":{},"end_to_end_ms":{},"each":[)",
      about, s.requests, s.failed, s.seconds, s.requests_per_s, s.prompt_tokens_per_s, s.answer_tokens_per_s,
      json_of(s.ttft_ms), json_of(s.inter_token_ms), json_of(s.end_to_end_ms));
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome& one = outcomes[i];
    out +=
        fmt::format(R"({}{{"begin_us":{},"first_us":{},"end_us":{},"prompt_tokens":{},"answer_tokens":{},"error":)",
                    i > 0 ? ",\n" : "\n", one.begin_us, one.first_us, one.end_us, one.prompt_tokens, one.answer_tokens);
    json_append_string(out, one.error);
    out += '}';
  }
  return out + "]}\n";
}

}  // namespace millrace::load
