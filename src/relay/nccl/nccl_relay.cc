#include "relay/nccl/nccl_relay.h"

#include "relay/nccl/nccl_channel.h"
#include "relay/session/session_relay.h"

namespace millrace {

Result<std::unique_ptr<Relay>> make_nccl_relay_of(const RelayOptions& options, const nccl::Libraries& libraries) {
  ASSIGN_OR_RETURN(const nccl::Api* api, nccl::load_nccl(libraries));
  const std::string listen = options.listen.empty() ? "127.0.0.1:0" : options.listen;
  ASSIGN_OR_RETURN(const tcp::SocketAddress address, tcp::parse_host_port(listen));
  RETURN_IF_ERROR(check_options(options));
  RETURN_IF_ERROR(tcp::check_reach(address, options.secret));
  int device = 0;
  RETURN_IF_ERROR(api->cuda("cudaGetDevice", api->cudaGetDevice(&device)));
  return session::make_session_relay(options, [&](session::Core& core) -> Result<std::unique_ptr<session::Channel>> {
    auto channel = std::make_unique<nccl::NcclChannel>(core, *api, device);
    RETURN_IF_ERROR(channel->open(address));
    return std::unique_ptr<session::Channel>(std::move(channel));
  });
}

Result<std::unique_ptr<Relay>> make_nccl_relay(const RelayOptions& options) { return make_nccl_relay_of(options, {}); }

}  // namespace millrace
