// A relay over any plugin of plugins/relay_plugin.h: the plugin reads memory and carries messages, the session
// (session/channel.h) and plugin_channel.h do the rest.
//
// Deadlines hold while the plugin hangs, and close() abandons a plugin that hangs after kRelayCloseMs.
//
// Thread safety: as in relay.h.
#pragma once

#include <memory>
#include <string>

#include <plugins/relay_plugin.h>
#include "relay/relay.h"

namespace millrace {

// kUnavailable where the plugin's engine cannot be opened.
Result<std::unique_ptr<Relay>> make_plugin_relay(const millrace_relay_plugin* plugin, const RelayOptions& options);
// The same from a file: load_plugin() of plugin_path(options.plugin_dir, name).
Result<std::unique_ptr<Relay>> make_plugin_relay(const std::string& name, const RelayOptions& options);

}  // namespace millrace
