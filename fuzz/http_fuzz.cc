// Bytes from a client through everything that reads them without a socket: head scanner and parser, target and Host,
// router, admission, body framing. The first byte says in how many pieces the rest arrives: the outcome must not depend
// on it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "http/admission.h"
#include "http/body.h"
#include "http/request_head.h"
#include "http/response_head.h"

namespace {

using namespace millrace::http;

constexpr Limits kLimits{.head_bytes = 2048, .header_count = 20, .target_bytes = 256, .body_bytes = 4096};

void require(bool condition) {
  if (!condition) std::abort();
}

const ServerOptions& options() {
  static const ServerOptions value{.api_key = "k", .cors_origins = {"https://ui.example"}, .limits = kLimits};
  return value;
}

const RouteTable& router() {
  static const RouteTable value = [] {
    RouteTable built;
    auto handler = [](RequestPtr, ResponderPtr) {};
    built.add({.method = "GET", .pattern = "/health", .access = Access::kPublic, .handler = handler});
    built.add({.method = "POST", .pattern = "/v1/echo", .access = Access::kPublic, .handler = handler});
    built.add({.method = "GET", .pattern = "/v1/models/{id}/{rest...}", .handler = handler});
    return built;
  }();
  return value;
}

void check_head(const RequestHead& head) {
  require(head.path == "*" || head.path.starts_with('/'));
  require(head.path.find('\0') == std::string::npos);
  require((head.path + "/").find("/../") == std::string::npos);
  require(head.headers.size() <= kLimits.header_count);
  require(!(head.chunked && head.has_content_length));
  require(head.minor_version == 0 || !head.host.empty());
  for (const Header& field : head.headers) require(field.value.find_first_of("\r\n") == std::string::npos);
}

std::string decide(const RequestHead& head) {
  static const Gate gate(options(), true);
  RouteTable::Match match = router().match(head.method, head.segments);
  Request request{.query = head.query};
  std::string value;
  request.query_value("q", value);
  std::optional<Response> refusal = admit(options(), gate, match, head, false, "req-fuzz");
  if (!refusal) {
    require(match.route != nullptr);
    const std::string* key = head.headers.find("authorization");
    require(match.route->access == Access::kPublic || (key != nullptr && key->ends_with(" k")));
    return usable_request_id(head) != nullptr ? "run named" : "run";
  }
  std::string out;
  append_response_head(out, *refusal, {.server_name = "s", .request_id = "i", .cors_origin = gate.cors_origin(head)});
  require(out.find("\r\n\r\n") == out.size() - 4);
  return out;
}

// All requests of a connection, written down. `piece` bytes become visible at a time.
std::string run(std::string_view data, size_t piece) {
  std::string log;
  size_t begin = 0;
  size_t visible = 0;
  auto more = [&] {
    if (visible == data.size()) return false;
    visible = std::min(data.size(), visible + piece);
    return true;
  };
  while (true) {
    HeadScanner scanner(kLimits);
    HeadScanner::State state = HeadScanner::State::kMore;
    while (state == HeadScanner::State::kMore) {
      state = scanner.scan(data.substr(begin, visible - begin));
      if (state == HeadScanner::State::kMore && !more()) return log + "end of head\n";
    }
    if (state == HeadScanner::State::kError)
      return log + std::to_string(scanner.error().status) + scanner.error().message;
    require(scanner.head_bytes() <= kLimits.head_bytes);
    RequestHead head;
    HttpError error = parse_head(data.substr(begin, scanner.head_bytes()), kLimits, head);
    if (error) return log + std::to_string(error.status) + error.message;
    begin += scanner.head_bytes();
    check_head(head);
    log += head.method + " " + head.path + "?" + head.query + " " + decide(head) + "\n";
    BodyReader reader(head, kLimits.body_bytes);
    std::string body;
    while (!reader.done()) {
      begin += reader.consume(data.substr(begin, visible - begin), body);
      require(body.size() <= kLimits.body_bytes);
      if (reader.error()) return log + std::to_string(reader.error().status) + reader.error().message;
      if (!reader.done() && !more()) return log + "end of body\n";
    }
    log += body + "\n";
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size < 2) return 0;
  std::string_view data(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  std::string whole = run(data, data.size());
  std::string pieces = run(data, 1 + bytes[0] % 16);
  // No Date is written, so nothing at all may differ.
  require(whole == pieces);
  return 0;
}
