#include "relay/tcp/tcp_relay.h"

#include "relay/testing/conformance.h"

int main(int argc, char** argv) {
  using namespace millrace;
  const auto make = [](const RelayOptions& options) { return make_tcp_relay(options); };
  RelayOptions options;
  options.streams = 2;  // as between hosts
  return relay_testing::conformance_main(argc, argv, {{.name = "tcp", .make = make, .options = options}});
}
