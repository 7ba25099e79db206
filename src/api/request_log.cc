#include "api/request_log.h"

#include <fmt/format.h>

#include <string>

#include "base/log.h"

namespace millrace::api {
namespace {

constexpr double kAtOnceSeconds = 1e-3;

// Tokens a second after the first one: how fast the text was written, whatever it waited for before. A short text may
// come at once: then all of it in the time of all.
std::string speed_of(const RequestFigures& figures) {
  const int32_t tokens = figures.usage.completion_tokens;
  const double seconds = figures.total_seconds - figures.first_seconds;
  if (tokens < 2 || figures.first_seconds <= 0 || figures.total_seconds <= 0) return "-";
  if (seconds < kAtOnceSeconds) return fmt::format("{:.0f}/s", tokens / figures.total_seconds);
  return fmt::format("{:.0f}/s", (tokens - 1) / seconds);
}

}  // namespace

void log_request(const http::RequestLabel& request, std::string_view model, const RequestFigures& figures,
                 std::string_view finish) {
  const std::string first = figures.first_seconds > 0 ? fmt::format("{:.0f}ms", figures.first_seconds * 1000) : "-";
  LOG_INFO("{} {} model={} prompt={} cached={} output={} first={} speed={} total={:.1f}s finish={} id={}",
           request.method, request.path, model, figures.usage.prompt_tokens, figures.usage.cached_tokens,
           figures.usage.completion_tokens, first, speed_of(figures), figures.total_seconds, finish,
           request.request_id);
}

void log_refusal(const http::RequestLabel& request, std::string_view model, const Status& why) {
  LOG_INFO("{} {} model={} refused={} id={}: {}", request.method, request.path, model, status_code_name(why.code()),
           request.request_id, why.message());
}

const char* reason_name(wire::FinishReason reason) {
  switch (reason) {
    case wire::FinishReason::kStop:
      return "stop";
    case wire::FinishReason::kLength:
      return "length";
    case wire::FinishReason::kAborted:
      return "abort";
    case wire::FinishReason::kError:
      return "error";
  }
  return "error";
}

}  // namespace millrace::api
