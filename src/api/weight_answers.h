// What the routes about weights answer, and what they read alike. Thread safety: free functions.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "http/server.h"
#include "stages/weight_control.h"
#include "wire/messages.h"

namespace millrace::api {

// Members of both dialects: SGLang's `success` and `message`, and `status`. `members`: more of them, with a comma
// before.
std::string success(std::string_view message, const std::string& members = "");
// Trainers look at the two members, not at the error object. What the caller asked for and cannot have is a 400.
// `field`: the one that a stage refuses, as its message names the stage instead; "": no single one.
http::Response failure(const Status& status, const char* field = "");

// ,"last_error","group_name","buckets","buckets_received","bytes","bytes_received": how far the update has come.
void append_progress(std::string& out, const WeightsState& state);

// Trainers take a 400 with its message for the end of an update, and try others again.
http::Response refusal(const Status& status);
WeightControl::Updated answer_updated(const http::ResponderPtr& responder, const char* message);

// An admin route about weights. The handler answers through the responder, now or later; an error that it returns is
// answered with refusal().
using WeightHandler = std::function<Status(WeightControl&, const http::Request&, const http::ResponderPtr&)>;
void add_weight_route(http::Server& server, WeightControl& weights, const char* method, const char* pattern,
                      WeightHandler handle);

// Trainers name versions by text or by the number of a step.
Status read_label(const Json& body, const char* key, std::string& label);
// `policy`, or `abort` where SGLang's `abort_all_requests` is true.
Result<wire::InFlightPolicy> read_update_policy(const Json& body);
Result<wire::InFlightPolicy> read_policy(const Json& body, const char* key, wire::InFlightPolicy absent);

}  // namespace millrace::api
