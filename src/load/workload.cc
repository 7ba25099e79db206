#include "load/workload.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/rng.h"

namespace millrace::load {
namespace {

// Separate uses of one seed.
enum Stream : uint64_t { kArrivals, kUniqueTokens, kSharedTokens, kBlockTokens };

constexpr std::string_view kWords[] = {"river", "stone", "light", "green", "paper", "house", "seven", "table",
                                       "music", "bread", "cloud", "train", "sugar", "night", "horse", "glass"};

// `count` tokens of the sequence `which`, appended.
class Tokens {
 public:
  explicit Tokens(const WorkloadOptions& options) : options_(options) {}

  void append(Stream stream, uint64_t which, int64_t count, std::string& out) const {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t draw = philox(options_.seed ^ which * 0x9E3779B97F4A7C15u, static_cast<uint64_t>(i), stream)[0];
      if (options_.text) {
        out += kWords[draw % std::size(kWords)];
        out += ' ';
      } else {
        const auto span = static_cast<uint32_t>(options_.vocabulary - kFirstToken);
        fmt::format_to(std::back_inserter(out), "{},", kFirstToken + draw % span);
      }
    }
  }

  // What append() was given, as a JSON value.
  std::string prompt(std::string tokens) const {
    if (!tokens.empty()) tokens.pop_back();
    return options_.text ? '"' + tokens + '"' : '[' + tokens + ']';
  }

 private:
  const WorkloadOptions& options_;
};

Status in_range(std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return ok_status();
  return invalid_argument("{} is {}; wanted {} to {}", name, value, low, high);
}

Status check(const WorkloadOptions& options) {
  RETURN_IF_ERROR(in_range("requests", options.requests, 1, kMaxRequests));
  RETURN_IF_ERROR(in_range("prompt-tokens", options.prompt_tokens, 1, kMaxTokens));
  RETURN_IF_ERROR(in_range("tokens", options.answer_tokens, 1, kMaxTokens));
  RETURN_IF_ERROR(in_range("groups", options.groups, 1, kMaxRequests));
  RETURN_IF_ERROR(in_range("prefix-tokens", options.prefix_tokens, 0, kMaxTokens));
  RETURN_IF_ERROR(in_range("vocabulary", options.vocabulary, kFirstToken + 1, 1 << 22));
  if (!(options.rate >= 0) || !std::isfinite(options.rate)) {
    return invalid_argument("rate is {}; wanted requests a second, or 0 for a closed loop", options.rate);
  }
  if (!(options.trace_speed > 0) || !std::isfinite(options.trace_speed)) {
    return invalid_argument("trace-speed is {}; wanted more than 0", options.trace_speed);
  }
  return ok_status();
}

void make_prompts(const WorkloadOptions& options, Workload& out) {
  const Tokens tokens(options);
  const bool shared = options.kind == WorkloadKind::kSharedPrefix;
  for (int64_t i = 0; i < options.requests; ++i) {
    std::string text;
    if (shared) {
      tokens.append(kSharedTokens, static_cast<uint64_t>(i % options.groups), options.prefix_tokens, text);
    }
    tokens.append(kUniqueTokens, static_cast<uint64_t>(i), options.prompt_tokens, text);
    out.requests.push_back({.prompt_tokens = options.prompt_tokens + (shared ? options.prefix_tokens : 0),
                            .answer_tokens = options.answer_tokens,
                            .prompt = tokens.prompt(std::move(text))});
  }
}

// Times between the arrivals of a Poisson process are exponential.
void make_arrivals(const WorkloadOptions& options, Workload& out) {
  double at = 0;
  for (std::size_t i = 0; i < out.requests.size(); ++i) {
    at -= std::log(philox_uniform(options.seed, i, kArrivals)) / options.rate;
    out.requests[i].arrival_us = static_cast<int64_t>(at * 1e6);
  }
}

Result<Request> read_trace_line(const WorkloadOptions& options, const std::string& line, uint64_t number) {
  ASSIGN_OR_RETURN(const Json json, parse_json(line));
  if (!json.is_object()) return invalid_argument("a {}; wanted an object", json_type_name(json));
  double timestamp = 0;
  int64_t input = 0, output = options.answer_tokens;
  std::string text;
  RETURN_IF_ERROR(json_read(json, "timestamp", timestamp));
  RETURN_IF_ERROR(json_read(json, "input_length", input));
  RETURN_IF_ERROR(json_read(json, "output_length", output));
  RETURN_IF_ERROR(json_read(json, "prompt", text));
  if (!(timestamp >= 0) || timestamp > 1e12) return invalid_argument("timestamp is {}; wanted milliseconds", timestamp);
  RETURN_IF_ERROR(in_range("output_length", output, 1, kMaxTokens));
  Request request{.arrival_us = static_cast<int64_t>(timestamp * 1000 / options.trace_speed),
                  .prompt_tokens = input,
                  .answer_tokens = output};
  if (!text.empty()) {
    json_append_string(request.prompt, text);
    return request;
  }
  RETURN_IF_ERROR(in_range("input_length", input, 1, kMaxTokens));
  const Tokens tokens(options);
  std::string ids;
  int64_t left = input;
  if (const Json* blocks = json_find(json, "hash_ids"); blocks != nullptr && blocks->is_array()) {
    for (const Json& block : *blocks) {
      if (!block.is_number_integer())
        return invalid_argument("hash_ids holds a {}; wanted integers", json_type_name(block));
      const int64_t count = std::min(left, kTraceBlockTokens);
      tokens.append(kBlockTokens, static_cast<uint64_t>(block.get<int64_t>()), count, ids);
      left -= count;
    }
  }
  tokens.append(kUniqueTokens, number, left, ids);
  request.prompt = tokens.prompt(std::move(ids));
  return request;
}

Status read_trace(const WorkloadOptions& options, Workload& out) {
  std::ifstream file(options.trace);
  if (!file)
    return error(StatusCode::kNotFound, "trace '{}' cannot be read; wanted a file of JSON lines", options.trace);
  uint64_t number = 0, bytes = 0;
  int64_t before = 0;
  for (std::string line; static_cast<int64_t>(out.requests.size()) < options.requests && std::getline(file, line);) {
    ++number;
    bytes += line.size();
    if (bytes > kMaxTraceBytes) {
      return error(StatusCode::kTooLarge, "{}: over {} bytes; wanted at most that", options.trace, kMaxTraceBytes);
    }
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<Request> request = read_trace_line(options, line, number);
    if (!request.ok()) return request.status().with_prefix(fmt::format("{}:{}", options.trace, number));
    if (request->arrival_us < before) {
      return invalid_argument("{}:{}: its timestamp is before that of the line above; wanted them in order",
                              options.trace, number);
    }
    before = request->arrival_us;
    out.requests.push_back(std::move(request).value());
  }
  if (out.requests.empty()) return invalid_argument("{}: holds no request; wanted JSON lines", options.trace);
  return ok_status();
}

}  // namespace

Result<WorkloadKind> parse_workload_kind(std::string_view name) {
  if (name == "random") return WorkloadKind::kRandom;
  if (name == "shared-prefix") return WorkloadKind::kSharedPrefix;
  if (name == "trace") return WorkloadKind::kTrace;
  return invalid_argument("the workload is '{}'; wanted random, shared-prefix or trace", name);
}

Result<Workload> make_workload(const WorkloadOptions& options) {
  RETURN_IF_ERROR(check(options));
  Workload out;
  if (options.kind == WorkloadKind::kTrace) {
    RETURN_IF_ERROR(read_trace(options, out));
    out.open_loop = true;
  } else {
    make_prompts(options, out);
    out.open_loop = options.rate > 0;
    if (out.open_loop) make_arrivals(options, out);
  }
  return out;
}

}  // namespace millrace::load
