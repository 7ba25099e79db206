// RequestRecord: where the end of each request that generates is noted: a line in the log (request_log.h), a span for a
// collector (request_spans.h), either or none.
//
// Owned by ApiState; set before routes are served, constant then. Thread safety: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "api/request_log.h"
#include "api/request_spans.h"

namespace millrace::api {

struct RequestRecord {
  bool lines = false;
  std::shared_ptr<RequestSpans> spans;  // null: no collector

  // Of a request that goes to the engine now, and was accepted so long ago. nullopt: it has no span.
  std::optional<ServerSpan> begin(const http::RequestLabel& request, double seconds_ago) const {
    return spans ? spans->begin(request, seconds_ago) : std::nullopt;
  }
  // `server`: as begin() made it; it is gone then.
  void ended(const http::RequestLabel& request, std::optional<ServerSpan>& server, std::string_view model,
             const RequestFigures& figures, std::string_view finish) const {
    if (lines) log_request(request, model, figures, finish);
    if (server) spans->end(std::move(*server), model, figures, finish);
    server.reset();
  }
  // Before anything was generated. `why`: not OK.
  void refused(const http::RequestLabel& request, std::optional<ServerSpan> server, std::string_view model,
               const Status& why) const {
    if (lines) log_refusal(request, model, why);
    if (server) spans->end(std::move(*server), model, why);
  }
};

}  // namespace millrace::api
