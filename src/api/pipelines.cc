#include "api/pipelines.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "api/command_routes.h"
#include "api/error.h"
#include "api/fields.h"
#include "api/health.h"
#include "api/samples.h"
#include "api/value_json.h"
#include "api/weights.h"

namespace millrace::api {
namespace {

constexpr std::size_t kMaxWantedTerminals = 16;

// One request's answer: the events of the pipeline as one body or as server-sent events. Of a stream, at most
// kMaxUnreadBytes (or one event) wait for the client here; what it does not read waits in the pipeline, which stops for
// it.
class PipelineReply : public std::enable_shared_from_this<PipelineReply> {
 public:
  PipelineReply(PipelineContext& context, http::ResponderPtr responder, bool stream)
      : engine_(context.engine), spans_(context.spans), responder_(std::move(responder)), stream_(stream) {}

  void run(PipelineRequest request) {
    if (spans_) server_span_ = spans_->begin(responder_->label(), 0);
    if (server_span_) request.options.traceparent = server_span_->traceparent();
    const ReqId id = engine_.submit(std::move(request),
                                    [self = shared_from_this()](RequestEvent& event) { return self->on_event(event); });
    // Set last: the sink may have ended it inside submit(), and then there is no client to notify.
    responder_->on_disconnect([self = weak_from_this(), &engine = engine_, id] {
      const auto reply = self.lock();  // the engine may have the last hold on it
      engine.abort(id);
      if (reply) reply->end_span(Status(StatusCode::kCancelled, "the client left"));
    });
  }

 private:
  SinkAnswer on_event(const RequestEvent& event) {
    const RequestEvent::End* const end = event.end();
    if (end && !end->status.ok()) return fail(end->status), SinkAnswer::kTaken;
    const bool is_output = end || event.value_chunk() || (event.text() && !event.text()->text.empty());
    if (!is_output) return SinkAnswer::kTaken;  // accepted, or ids without text so far
    if (!stream_) {
      if (end) {
        end_span(ok_status());
        responder_->send({.body = result(event.id, end->result)});
      }
      return SinkAnswer::kTaken;  // the result has all that the chunks have
    }
    // Kept until the client takes it: the same event comes again.
    if (waiting_.empty()) {
      waiting_ = end ? "data: " + result(event.id, end->result) + "\n\ndata: [DONE]\n\n" : chunk_event(event);
    }
    const std::size_t unread = responder_->pending_bytes();
    if (unread > 0 && unread + waiting_.size() > kMaxUnreadBytes && !responder_->disconnected()) {
      return SinkAnswer::kFull;
    }
    start();
    responder_->write(waiting_);  // false: the client is gone, and on_disconnect aborts
    std::string().swap(waiting_);
    if (end) {
      end_span(ok_status());
      responder_->end();
    }
    return SinkAnswer::kTaken;
  }

  // Numbered as they are written, from 0 for each stage.
  std::string chunk_event(const RequestEvent& event) {
    const wire::TextDelta* const text = event.text();
    const std::string stage(event.stage);
    std::string out = fmt::format("data: {{\"id\":\"{}\",\"stage\":", event.id.value);
    json_append_string(out, stage);
    out += ",\"modality\":";
    json_append_string(out, text ? kTextModality : event.value_chunk()->modality);
    fmt::format_to(std::back_inserter(out), ",\"chunk_id\":{},\"value\":", next_[stage]++);
    if (text) {
      out += "{\"text\":";
      json_append_string(out, text->text);
      out += '}';
    } else {
      append_value(out, event.value_chunk()->value);
    }
    return out += "}\n\n";
  }

  static std::string result(ReqId id, const Value& value) {
    std::string out = fmt::format("{{\"id\":\"{}\",\"result\":", id.value);
    append_value(out, value);
    return out += '}';
  }

  // Errors before the first byte are real statuses: the stream begins with the first chunk.
  void start() {
    if (!started_) responder_->start_sse();
    started_ = true;
  }

  // Once: its end, or that of its client.
  void end_span(const Status& status) {
    if (!server_span_ || span_ended_.exchange(true)) return;
    spans_->end(std::move(*server_span_), "", status);
  }

  void fail(const Status& status) {
    end_span(status);
    const ApiError error = from_status(status);
    if (!started_) {
      responder_->send(error_response(error));
      return;
    }
    responder_->write("data: " + render_error(error) + "\n\n");
    responder_->end();
  }

  PipelineEngine& engine_;
  const std::shared_ptr<RequestSpans> spans_;  // null: no collector
  std::optional<ServerSpan> server_span_;      // from run() on
  std::atomic<bool> span_ended_{false};
  const http::ResponderPtr responder_;
  const bool stream_;
  bool started_ = false;
  std::map<std::string, uint64_t> next_;
  std::string waiting_;  // one event that the client cannot take yet
};

Status read_terminals(const Json& body, SubmitOptions& out) {
  const Json* list = json_find(body, "terminals");
  if (list == nullptr) return ok_status();
  if (!list->is_array() || list->empty() || list->size() > kMaxWantedTerminals) {
    const std::string seen = !list->is_array() ? std::string(json_type_name(*list))
                             : list->empty()   ? "empty"
                                               : fmt::format("a list of {}", list->size());
    return invalid_argument("terminals is {}; wanted a list of 1 to {} stages", seen, kMaxWantedTerminals);
  }
  out.terminals.emplace();
  for (const Json& name : *list) {
    if (!name.is_string())
      return invalid_argument("terminals holds a {}; wanted names of stages", json_type_name(name));
    out.terminals->push_back(name.get<std::string>());
  }
  return ok_status();
}

Status run_pipeline(PipelineContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  PipelineRequest out;
  const Json* inputs = json_find(body, "inputs");
  if (inputs == nullptr) return invalid_argument("inputs is missing; wanted what the pipeline's entry takes");
  ASSIGN_OR_RETURN(out.inputs, value_from_json(*inputs, "inputs"));
  RETURN_IF_ERROR(read_terminals(body, out.options));
  bool stream = false;
  double timeout_s = 0;
  RETURN_IF_ERROR(json_read(body, "stream", stream));
  RETURN_IF_ERROR(json_read(body, "timeout_s", timeout_s));
  // A request never gets less time than it asked for without an error.
  const int64_t longest_s = context.engine.request_timeout_s();
  if (!(timeout_s >= 0 && timeout_s <= static_cast<double>(longest_s))) {
    return invalid_argument("timeout_s is {}; wanted a number from 0 to {}, request_timeout_s of the pipeline",
                            timeout_s, longest_s);
  }
  out.options.timeout_ms = static_cast<int64_t>(std::ceil(timeout_s * 1000));  // up: 0 would be no limit of its own
  std::make_shared<PipelineReply>(context, responder, stream)->run(std::move(out));
  return ok_status();
}

void note_pipeline_refusal(const PipelineContext& context, const http::RequestLabel& request, const Status& why) {
  if (!context.spans) return;
  if (auto span = context.spans->begin(request, 0)) context.spans->end(std::move(*span), "", why);
}

void hello(PipelineContext& context, const http::ResponderPtr& responder) {
  responder->send({.content_type = "text/plain; charset=utf-8",
                   .body = fmt::format("Millrace {} runs the pipeline '{}'.\nPOST {{\"inputs\": ...}} to /v1/pipeline; "
                                       "GET it for a picture; /ready reports whether requests are accepted now.\n",
                                       context.version, context.engine.name())});
}

void metrics(PipelineContext& context, const http::ResponderPtr& responder) {
  responder->send(
      {.content_type = std::string(Metrics::kContentType), .body = pipeline_metrics(context.server, context.engine)});
}

}  // namespace

void add_pipeline_routes(PipelineContext& context) {
  add_command_routes(context.server,
                     [&engine = context.engine](wire::AdminAction action, int64_t timeout_ms, auto done) {
                       engine.admin(action, timeout_ms, std::move(done));
                     });
  if (WeightControl* weights = context.engine.weights()) add_weight_routes(context.server, *weights, nullptr);
  using Answer = void (*)(PipelineContext&, const http::ResponderPtr&);
  const auto get = [&context](const char* pattern, http::Access access, Answer answer) {
    context.server.add_route(
        {.method = "GET", .pattern = pattern, .access = access, .handler = [&context, answer](auto, auto responder) {
           answer(context, responder);
         }});
  };
  const Answer ready = [](PipelineContext& c, const http::ResponderPtr& responder) {
    responder->send(health_response(c.engine.health()));
  };
  get("/", http::Access::kPublic, hello);
  get("/live", http::Access::kPublic,
      [](PipelineContext&, const http::ResponderPtr& responder) { responder->send({.body = "{\"live\":true}"}); });
  for (const char* path : kReadyPaths) get(path, http::Access::kPublic, ready);
  get("/version", http::Access::kPublic, [](PipelineContext& c, const http::ResponderPtr& responder) {
    responder->send({.body = fmt::format("{{\"version\":\"{}\"}}", c.version)});
  });
  get("/metrics", http::Access::kPublic, metrics);  // scrapers carry no key
  add_pipeline_run_routes(context);
}

void add_pipeline_run_routes(PipelineContext& context) {
  context.server.add_route({.method = "GET", .pattern = "/v1/pipeline", .handler = [&context](auto, auto responder) {
                              responder->send({.content_type = "image/svg+xml", .body = context.engine.picture()});
                            }});
  context.server.add_route(
      {.method = "POST", .pattern = "/v1/pipeline", .handler = [&context](auto request, auto responder) {
         const Status status = run_pipeline(context, *request, responder);
         if (status.ok()) return;
         note_pipeline_refusal(context, responder->label(), status);
         responder->send(error_response(field_error(status)));
       }});
}

}  // namespace millrace::api
