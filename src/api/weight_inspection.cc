#include "api/weight_inspection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/sha.h>

#include <array>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>

#include "api/admin_fields.h"
#include "api/unserved_fields.h"
#include "api/weight_answers.h"
#include "base/utf8.h"

namespace millrace::api {
namespace {

std::string sha256_hex(const std::string& text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

// SGLang's clients send a body with GET; a query is as good.
Result<Json> read_wanted(const http::Request& request) {
  ASSIGN_OR_RETURN(Json body, parse_command(request));
  std::string text;
  if (request.query_value("name", text)) body["name"] = text;
  if (request.query_value("truncate_size", text)) {
    int64_t rows = -1;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), rows);
    if (code != std::errc() || end != text.data() + text.size()) rows = -1;
    body["truncate_size"] = rows;
  }
  return body;
}

Status show_values(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, read_wanted(request));
  std::string name;
  int64_t rows = 100;
  RETURN_IF_ERROR(json_read(body, "name", name));
  RETURN_IF_ERROR(json_read(body, "truncate_size", rows));
  if (name.empty()) return invalid_argument("name is missing; wanted a tensor of the model's folder");
  if (!is_utf8(name)) return invalid_argument("name is no UTF-8; wanted a tensor of the model's folder");
  if (rows < 1) return invalid_argument("truncate_size is {}; wanted rows of the tensor, at least 1", rows);
  weights.inspect(Json{{"what", "values"}, {"name", name}, {"rows", rows}}.dump(), [responder](const auto& answers) {
    responder->send(answers.ok() ? http::Response{.body = answers->front()} : refusal(answers.status()));
  });
  return ok_status();
}

// One rank for each replica that is well.
std::string ranks_of(const std::vector<std::string>& answers) {
  std::string out = ",\"ranks\":[", all;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const std::string sum = sha256_hex(answers[i]);
    all += sum;
    fmt::format_to(
        std::back_inserter(out),
        "{}{{\"checksums\":{},\"per_gpu_checksum\":\"{}\",\"parallelism_info\":{{\"tp_rank\":0,\"tp_size\":1,"
        "\"dp_rank\":{},\"dp_size\":{},\"pp_rank\":0,\"pp_size\":1,\"rank\":{},\"size\":{}}}}}",
        i > 0 ? "," : "", answers[i], sum, i, answers.size(), i, answers.size());
  }
  return fmt::format("{}],\"per_engine_checksum\":\"{}\"", out, sha256_hex(all));
}

Status check(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_command(request));
  std::string action = "checksum";
  RETURN_IF_ERROR(json_read(body, "action", action));
  if (action != "checksum" && action != "snapshot" && action != "compare") {
    return error(StatusCode::kUnsupported, "Unsupported action '{}'; wanted 'checksum', 'snapshot' or 'compare'",
                 action.substr(0, 64));
  }
  RETURN_IF_ERROR(refuse_unless(body, "allow_quant_error", false));
  weights.inspect(Json{{"what", action}}.dump(), [responder, action](const auto& answers) {
    if (!answers.ok()) {
      responder->send(refusal(answers.status()));
      return;
    }
    responder->send({.body = success(action + " done", ranks_of(*answers))});
  });
  return ok_status();
}

Status info(WeightControl& weights, const http::Request& /*request*/, const http::ResponderPtr& responder) {
  weights.inspect(R"({"what":"tensors"})", [&weights, responder](const auto& answers) {
    if (!answers.ok()) {
      responder->send(refusal(answers.status()));
      return;
    }
    std::string out = "{\"weight_version\":";
    json_append_string(out, weights.state().label);
    responder->send(
        {.body = fmt::format("{},\"world_size\":{},\"tensors\":{}}}", out, answers->size(), answers->front())});
  });
  return ok_status();
}

}  // namespace

void add_weight_inspection_routes(http::Server& server, WeightControl& weights) {
  const auto add = [&](const char* method, const char* pattern, WeightHandler handle) {
    add_weight_route(server, weights, method, pattern, handle);
  };
  add("GET", "/get_weights_by_name", show_values);
  add("POST", "/get_weights_by_name", show_values);
  add("POST", "/weights_checker", check);
  add("GET", "/weight_info", info);
}

}  // namespace millrace::api
