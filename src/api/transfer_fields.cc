#include "api/transfer_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "api/sampling_fields.h"
#include "base/nearest.h"
#include "base/utf8.h"
#include "control/endpoint.h"

namespace millrace::api {
namespace {

constexpr std::string_view kField = "kv_transfer_params";
const std::vector<std::string_view> kNames = {"transfer_id", "do_remote_prefill", "do_remote_decode", "remote_host",
                                              "remote_port", "remote_engine_id",  "remote_block_ids"};
// vLLM's proxies send these as null; here pages are found by their tokens.
constexpr std::string_view kOnlyNull[] = {"remote_engine_id", "remote_block_ids"};

Status check_names(const Json& params) {
  for (const auto& [key, value] : params.items()) {
    if (std::find(kNames.begin(), kNames.end(), key) == kNames.end()) {
      const std::string known = utf8_repair(key.substr(0, 64));
      return invalid_argument("{}.{} is unknown{}", kField, known, suggestion(key, kNames));
    }
  }
  for (const std::string_view key : kOnlyNull) {
    if (const Json* value = json_find(params, key)) {
      return invalid_argument("{}.{} is of type {}; wanted null: pages are found by their tokens", kField, key,
                              json_type_name(*value));
    }
  }
  return ok_status();
}

Result<std::string> read_peer(const Json& params) {
  std::string host;
  std::optional<int64_t> port;
  RETURN_IF_ERROR(json_read(params, "remote_host", host));
  RETURN_IF_ERROR(read_integer(params, "remote_port", 1, 65535, port));
  if (host.empty()) return invalid_argument("remote_host is missing; wanted the address of the server that computes");
  if (!port) return invalid_argument("remote_port is missing; wanted the port of its --kv-transfer-listen");
  if (host.size() > kMaxHostBytes) {
    return invalid_argument("remote_host has {} bytes; wanted at most {}", host.size(), kMaxHostBytes);
  }
  const bool ipv6 = host.find(':') != std::string::npos && !host.starts_with('[');
  const std::string text = ipv6 ? fmt::format("tcp://[{}]:{}", host, *port) : fmt::format("tcp://{}:{}", host, *port);
  const auto endpoint = parse_endpoint(text);
  if (!endpoint.ok()) return endpoint.status().with_prefix("remote_host");
  if (endpoint->name == "*") return invalid_argument("remote_host is *; wanted one address");
  return endpoint->to_string();
}

Result<wire::RemoteKv> read_params(const Json& params) {
  wire::RemoteKv out;
  RETURN_IF_ERROR(json_read(params, "transfer_id", out.id.text));
  if (out.id.text.empty()) return invalid_argument("transfer_id is missing; wanted a text such as xfer- and a UUID");
  if (!is_transfer_id(out.id.text)) {
    return invalid_argument("transfer_id is '{}'; wanted at most {} letters, digits, '-' and '_'",
                            utf8_repair(out.id.text.substr(0, 64)), kMaxTransferIdBytes);
  }
  bool prefill_is_remote = false, decode_is_remote = false;
  RETURN_IF_ERROR(json_read(params, "do_remote_prefill", prefill_is_remote));
  RETURN_IF_ERROR(json_read(params, "do_remote_decode", decode_is_remote));
  if (prefill_is_remote == decode_is_remote) {
    return invalid_argument("do_remote_prefill is {0} and do_remote_decode is {0}; wanted one of them to be true",
                            prefill_is_remote);
  }
  out.role = prefill_is_remote ? wire::KvRole::kDecode : wire::KvRole::kPrefill;
  if (prefill_is_remote) {
    ASSIGN_OR_RETURN(out.peer, read_peer(params));
  }
  return out;
}

}  // namespace

Result<std::optional<wire::RemoteKv>> read_kv_transfer(const Json& body) {
  const Json* params = json_find(body, kField);
  if (params == nullptr) return std::optional<wire::RemoteKv>();
  if (!params->is_object()) {
    return invalid_argument("{} is of type {}; wanted an object", kField, json_type_name(*params));
  }
  RETURN_IF_ERROR(check_names(*params));
  auto out = read_params(*params);
  if (!out.ok()) return Status(out.status().code(), fmt::format("{}.{}", kField, out.status().message()));
  return std::optional(std::move(*out));
}

Status check_kv_transfer(const std::optional<wire::RemoteKv>& transfer, std::size_t texts) {
  if (!transfer || texts == 1) return ok_status();
  return invalid_argument("{} is set in a request for {} texts; wanted one prompt and one text", kField, texts);
}

}  // namespace millrace::api
