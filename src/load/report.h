// What a load test measured, and how it is reported: figures, JSON, and a picture.
//
// All times are seen by the client. Time to first token (TTFT): from sending the request to the first event that holds
// text. Inter-token: between two such events of one answer. End to end: to the last byte. In an open loop a request's
// time begins at its arrival, so that what it waited because the client had no connection free is counted too.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::load {

struct Outcome {
  int64_t begin_us = 0;  // from the start of the test
  int64_t first_us = -1;
  int64_t end_us = 0;
  int64_t prompt_tokens = 0;
  int64_t answer_tokens = 0;     // as the server counted them; else events with text
  std::vector<int32_t> gaps_us;  // between events with text
  std::string error;             // empty: it was answered
};

// Of values in any order; 0 where there are none.
struct Quantiles {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};
Quantiles quantiles(std::vector<double> values);

struct Summary {
  int64_t requests = 0;
  int64_t failed = 0;
  std::vector<std::pair<std::string, int64_t>> errors;  // the most frequent ones, with their counts
  double seconds = 0;                                   // from the first request to the last end
  double requests_per_s = 0, prompt_tokens_per_s = 0, answer_tokens_per_s = 0;
  Quantiles ttft_ms, inter_token_ms, end_to_end_ms;
};
Summary summarize(const std::vector<Outcome>& outcomes);

// A table for people.
std::string to_text(const Summary& summary);
// One object: the summary, `about` (what was asked for: an object in JSON), and each request.
std::string to_json(const Summary& summary, const std::string& about, const std::vector<Outcome>& outcomes);
// What stands above a picture: what was loaded and when, and with which options.
struct PlotTitle {
  std::string headline, options;
};
// Distributions of the three times with p50, p90 and p99, gaps on a logarithmic axis, and the tokens that came in each
// stretch of the test.
std::string to_svg(const Summary& summary, const PlotTitle& title, const std::vector<Outcome>& outcomes);

}  // namespace millrace::load
