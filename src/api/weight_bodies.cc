#include "api/weight_bodies.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "api/weight_answers.h"
#include "formats/safetensors.h"

namespace millrace::api {
namespace {

constexpr const char* kGroup = "request body";  // as /weights_update_status names what sends the weights

// The body while replicas read it, in memory without a name.
class BodyFile {
 public:
  BodyFile() : fd_(::memfd_create("weights", MFD_CLOEXEC)) {}
  ~BodyFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  BodyFile(const BodyFile&) = delete;
  BodyFile& operator=(const BodyFile&) = delete;

  Status write(std::string_view bytes) {
    while (fd_ >= 0 && !bytes.empty()) {
      const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) break;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    if (fd_ >= 0 && bytes.empty()) return ok_status();
    return error(StatusCode::kResourceExhausted, "the body cannot be kept for the replicas: {}", std::strerror(errno));
  }
  std::string path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_); }

 private:
  const int fd_;
};

// The fields stand in the query, for the body is the tensors.
Result<Json> read_query(const http::Request& request) {
  Json out = Json::object();
  std::string text;
  for (const char* key : {"weight_version", "policy", "load_format"}) {
    if (request.query_value(key, text)) out[key] = text;
  }
  for (const char* key : {"flush_cache", "abort_all_requests"}) {
    if (!request.query_value(key, text)) continue;
    if (text != "true" && text != "false") {
      return invalid_argument("{} is '{}'; wanted true or false", key, text.substr(0, 64));
    }
    out[key] = text == "true";
  }
  return out;
}

// A JSON body is SGLang's, with pickled tensors.
Status check_body(const http::Request& request) {
  const std::string* type = request.headers.find("content-type");
  const std::string_view kind = type == nullptr ? "" : std::string_view(*type);
  if (kind.starts_with("application/octet-stream") || kind.starts_with("application/x-safetensors")) return ok_status();
  return error(
      StatusCode::kUnsupported,
      "serialized_named_tensors and other JSON bodies are not read, for a pickle may run code; wanted the body "
      "of safetensors.torch.save(tensors) with Content-Type: application/octet-stream, and the other fields in "
      "the query (Content-Type is '{}')",
      kind.substr(0, 64));
}

Result<WeightPlan> read_plan(const std::string& body) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(body));
  ASSIGN_OR_RETURN(const SafetensorsHeader header, parse_safetensors(bytes, "the body"));
  if (header.tensors.empty()) return invalid_argument("the body has no tensors; wanted at least one");
  if (header.tensors.size() > kMaxWeightTensors) {
    return error(StatusCode::kTooLarge, "the body has {} tensors; wanted at most {}", header.tensors.size(),
                 kMaxWeightTensors);
  }
  WeightPlan plan{.group = kGroup, .flattened = true, .buckets = {{}}};
  for (const SafetensorsEntry& tensor : header.tensors) {
    const bool fits = tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kF32;
    if (!fits) {
      return error(StatusCode::kUnsupported, "{} has the dtype {}; wanted BF16, F16 or F32", quoted_name(tensor.name),
                   dtype_name(tensor.dtype));
    }
    if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
      return invalid_argument("a name has {} bytes; wanted 1 to {}", tensor.name.size(), kMaxTensorNameBytes);
    }
    plan.buckets.front().push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  const std::span<const std::byte> data = bytes.subspan(header.data_start);
  plan.body = {.begin = header.data_start, .end = bytes.size(), .checksum = XXH3_64bits(data.data(), data.size())};
  return plan;
}

Status update_from_tensor(WeightControl& weights, const http::Request& request, const http::ResponderPtr& responder) {
  RETURN_IF_ERROR(check_body(request));
  ASSIGN_OR_RETURN(const Json query, read_query(request));
  std::string format = "auto";
  RETURN_IF_ERROR(json_read(query, "load_format", format));
  if (format != "auto") return invalid_argument("load_format is '{}'; wanted 'auto'", format.substr(0, 64));
  LiveCompletion completion{.group = kGroup, .flush_cache = true};
  RETURN_IF_ERROR(read_label(query, "weight_version", completion.label));
  RETURN_IF_ERROR(json_read(query, "flush_cache", completion.flush_cache));
  ASSIGN_OR_RETURN(completion.policy, read_update_policy(query));
  ASSIGN_OR_RETURN(WeightPlan plan, read_plan(request.body));
  const auto file = std::make_shared<BodyFile>();
  RETURN_IF_ERROR(file->write(request.body));
  plan.body.path = file->path();
  const WeightControl::Updated answer = answer_updated(responder, "the new weights serve");
  weights.receive_and_complete(plan, std::move(completion), [file, answer](const auto& updated) { answer(updated); });
  return ok_status();
}

}  // namespace

void add_weight_body_route(http::Server& server, WeightControl& weights) {
  server.add_route({.method = "POST",
                    .pattern = "/update_weights_from_tensor",
                    .access = http::Access::kAdmin,
                    .require_json = false,
                    .max_body_bytes = kMaxTensorBodyBytes,
                    .handler = [&weights](auto request, auto responder) {
                      const Status status = update_from_tensor(weights, *request, responder);
                      if (!status.ok()) responder->send(refusal(status));
                    }});
}

}  // namespace millrace::api
