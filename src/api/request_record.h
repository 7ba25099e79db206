// RequestRecord: where the end of each request that generates is noted: a line in the log (request_log.h), a span for a
// collector (request_spans.h), either or none.
//
// Owned by ApiState; set before routes are served, constant then. Thread safety: any thread.
#pragma once

#include <memory>
#include <string_view>

#include "api/request_log.h"
#include "api/request_spans.h"

namespace millrace::api {

struct RequestRecord {
  bool lines = false;
  std::unique_ptr<RequestSpans> spans;  // null: no collector

  void ended(const http::RequestLabel& request, std::string_view model, const RequestFigures& figures,
             std::string_view finish) const {
    if (lines) log_request(request, model, figures, finish);
    if (spans) spans->add(request, model, figures, finish);
  }
  // Before anything was generated. `why`: not OK.
  void refused(const http::RequestLabel& request, std::string_view model, const Status& why) const {
    if (lines) log_refusal(request, model, why);
    if (spans) spans->add_refusal(request, model, why);
  }
};

}  // namespace millrace::api
