#include "api/weight_answers.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/error.h"
#include "api/fields.h"

namespace millrace::api {

std::string success(std::string_view message, const std::string& members) {
  std::string out = "{\"success\":true,\"status\":\"ready\",\"message\":";
  json_append_string(out, message);
  return out + members + "}";
}

namespace {

// Replies of stages begin with their names, "scheduler: ...", where other messages have the field's.
bool is_of_stage(std::string_view message) {
  const std::size_t end = message.find(": ");
  return end != std::string_view::npos && message.find(' ') > end;
}

}  // namespace

http::Response failure(const Status& status, const char* field) {
  const bool at_this_time = status.code() == StatusCode::kConflict || status.code() == StatusCode::kResourceExhausted;
  const bool asked =
      at_this_time || status.code() == StatusCode::kNotFound || status.code() == StatusCode::kPermissionDenied;
  ApiError error = field_error(asked ? Status(StatusCode::kInvalidArgument, status.message()) : status);
  if (is_of_stage(status.message())) error.param = error.http_status == 400 && !at_this_time ? field : "";
  http::Response response = error_response(error);
  std::string members = ",\"success\":false,\"status\":\"error\",\"message\":";
  json_append_string(members, status.message());
  response.body.insert(response.body.rfind('}'), members);
  return response;
}

void append_progress(std::string& out, const WeightsState& state) {
  out += ",\"last_error\":";
  json_append_string(out, state.last_error);
  out += ",\"group_name\":";
  json_append_string(out, state.group);
  fmt::format_to(std::back_inserter(out), ",\"buckets\":{},\"buckets_received\":{},\"bytes\":{},\"bytes_received\":{}",
                 state.buckets, state.buckets_received, state.bytes, state.bytes_received);
}

Result<wire::InFlightPolicy> read_policy(const Json& body, const char* key, wire::InFlightPolicy absent) {
  std::string name;
  RETURN_IF_ERROR(json_read(body, key, name));
  if (name.empty()) return absent;
  if (name == "in_place") return wire::InFlightPolicy::kInPlace;
  if (name == "retract") return wire::InFlightPolicy::kRetract;
  if (name == "abort") return wire::InFlightPolicy::kAbort;
  return invalid_argument("{} is '{}'; wanted 'in_place', 'retract' or 'abort'", key, name.substr(0, 64));
}

http::Response refusal(const Status& status) {
  if (status.code() == StatusCode::kInternal) return failure(status);
  return failure(Status(StatusCode::kInvalidArgument, status.message()));
}

WeightControl::Updated answer_updated(const http::ResponderPtr& responder, const char* message) {
  return [responder, message](const Result<LiveUpdated>& updated) {
    if (!updated.ok()) {
      responder->send(refusal(updated.status()));
      return;
    }
    std::string members = fmt::format(",\"num_buckets_received\":{},\"weight_version\":", updated->buckets);
    json_append_string(members, updated->label);
    responder->send({.body = success(message, members)});
  };
}

Result<wire::InFlightPolicy> read_update_policy(const Json& body) {
  bool abort = false;
  RETURN_IF_ERROR(json_read(body, "abort_all_requests", abort));
  return read_policy(body, "policy", abort ? wire::InFlightPolicy::kAbort : wire::InFlightPolicy::kInPlace);
}

Status read_label(const Json& body, const char* key, std::string& label) {
  const auto found = body.find(key);
  if (found == body.end() || !found->is_number_integer()) return json_read(body, key, label);
  label = found->dump();
  return ok_status();
}

void add_weight_route(http::Server& server, WeightControl& weights, const char* method, const char* pattern,
                      WeightHandler handle) {
  CHECK(handle != nullptr);
  server.add_route({.method = method,
                    .pattern = pattern,
                    .access = http::Access::kAdmin,
                    .handler = [&weights, handle = std::move(handle)](auto request, auto responder) {
                      const Status status = handle(weights, *request, responder);
                      if (!status.ok()) responder->send(refusal(status));
                    }});
}

}  // namespace millrace::api
