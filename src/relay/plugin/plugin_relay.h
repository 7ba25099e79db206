// A relay over any plugin of plugins/relay_plugin.h: the plugin reads memory and carries messages, this does the rest.
//
// put() copies into registered memory. A reader asks first, and reads only what it was granted: so a slot is never read
// by somebody whom the writer does not know of, and never used again under a reader. What was read is checked against
// the checksum of the grant. Each message names its get and is repeated until it is answered, so a lost, doubled or
// late one does no harm; a peer that is silent for silent_ms while something is open is taken for dead. All calls into
// the plugin come from one thread of the relay's; deadlines are another's, so they hold also where the plugin hangs,
// and close() leaves a hanging plugin behind after kRelayCloseMs.
//
// Host memory only; twice the pool is registered, once for what is put and once for what is read.
//
// Thread safety: as relay.h says.
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
