#include "relay/ucx/ucx_relay.h"

#include <cstdlib>

#include "relay/session/session_relay.h"
#include "relay/ucx/ucx_channel.h"

namespace millrace {

Result<std::unique_ptr<Relay>> make_ucx_relay_from(const char* library, const RelayOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(const ucx::UcxApi* api, ucx::load_ucx(library));
  return make_ucx_relay_over(*api, options);
}

Result<std::unique_ptr<Relay>> make_ucx_relay_over(const ucx::UcxApi& api, const RelayOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(const ucx::Transports transports,
                   ucx::choose_transports(options.listen, std::getenv("UCX_TLS"), std::getenv("UCX_NET_DEVICES")));
  return session::make_session_relay(options, [&](session::Core& core) -> Result<std::unique_ptr<session::Channel>> {
    auto channel = std::make_unique<ucx::UcxChannel>(core, api, transports);
    RETURN_IF_ERROR(channel->open());
    return std::unique_ptr<session::Channel>(std::move(channel));
  });
}

Result<std::unique_ptr<Relay>> make_ucx_relay(const RelayOptions& options) {
  return make_ucx_relay_from(kUcxLibrary, options);
}

}  // namespace millrace
