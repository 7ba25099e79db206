// Endpoints of the control plane, from a pipeline's file, a command line or a peer. What is accepted is within its
// limits, is itself again when it is written and read, and what the socket library is given names the same place. Names
// that only a resolver could tell are not looked up.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "control/endpoint.h"

namespace {

using namespace millrace;

void check(const Endpoint& endpoint) {
  const std::string text = endpoint.to_string();
  const Result<Endpoint> again = parse_endpoint(text);
  CHECK(again.ok() && *again == endpoint);
  CHECK(endpoint.name.find('\0') == std::string::npos && !endpoint.name.empty());
  if (const Result<std::string> address = address_to_connect(endpoint); address.ok()) {
    const Result<Endpoint> there = parse_endpoint(*address);
    CHECK(there.ok() && there->port == endpoint.port && there->local() == endpoint.local());
    CHECK(endpoint.transport != Transport::kTcp || (endpoint.port != 0 && endpoint.name != "*"));
  }
  switch (endpoint.transport) {
    case Transport::kIpc:
      CHECK(endpoint.name.size() <= kMaxIpcPathBytes && endpoint.name[0] == '/' && endpoint.port == 0);
      break;
    case Transport::kInproc:
      CHECK(endpoint.name.size() <= kMaxInprocNameBytes && endpoint.port == 0);
      break;
    case Transport::kTcp:
      CHECK(endpoint.name.size() <= kMaxHostBytes);
      CHECK(endpoint.name != "*" || !endpoint.local());
      if (endpoint.ipv6) CHECK(address_to_bind(endpoint).ok());
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Result<Endpoint> endpoint = parse_endpoint(text);
  if (endpoint.ok()) {
    CHECK(text.size() <= kMaxEndpointBytes);
    check(*endpoint);
  } else {
    // The message goes to a log or a terminal: nothing in it but printable ASCII.
    for (const char c : endpoint.status().message()) CHECK(c >= 32 && c <= 126);
  }
  return 0;
}
