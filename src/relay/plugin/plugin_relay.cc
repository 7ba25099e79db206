#include "relay/plugin/plugin_relay.h"

#include "relay/plugin/plugin_channel.h"
#include "relay/plugin/plugin_library.h"
#include "relay/session/session_relay.h"

namespace millrace {

Result<std::unique_ptr<Relay>> make_plugin_relay(const millrace_relay_plugin* plugin, const RelayOptions& options) {
  return session::make_session_relay(options, [&](session::Core& core) -> Result<std::unique_ptr<session::Channel>> {
    auto channel = std::make_unique<plugin::PluginChannel>(core, *plugin);
    RETURN_IF_ERROR(channel->open());
    return std::unique_ptr<session::Channel>(std::move(channel));
  });
}

Result<std::unique_ptr<Relay>> make_plugin_relay(const std::string& name, const RelayOptions& options) {
  ASSIGN_OR_RETURN(const millrace_relay_plugin* plugin, load_plugin(plugin_path(options.plugin_dir, name)));
  return make_plugin_relay(plugin, options);
}

}  // namespace millrace
