// A relay plugin's shared object, opened. It is never closed again: a thread of it may hang.
//
// Thread safety: free functions without state.
#pragma once

#include <string>
#include <string_view>

#include <plugins/relay_plugin.h>
#include "base/status.h"

namespace millrace {

// "DIR/relay_NAME.so"; an empty dir is "plugins" beside the program.
std::string plugin_path(std::string_view dir, std::string_view name);

// kUnavailable with the reason: no such file, no such symbol, another version of the interface, or the plugin reports
// that it cannot work here.
Result<const millrace_relay_plugin*> load_plugin(const std::string& path);

}  // namespace millrace
