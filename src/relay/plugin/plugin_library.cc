#include "relay/plugin/plugin_library.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>

namespace millrace {
namespace {

// A plugin is others' code: what is missing is found here, not by a call through a null pointer.
bool complete(const millrace_relay_plugin& p) {
  return p.available && p.open && p.close && p.blob && p.connect && p.disconnect && p.read && p.poll && p.abandon &&
         p.send && p.receive;
}

bool name_is_good(const char* name) {
  if (!name) return false;
  const std::string_view text(name);
  // It becomes the backend's name in descriptors, kMaxBackendNameBytes with a zero.
  if (text.empty() || text.size() > 15) return false;
  return text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

}  // namespace

std::string plugin_path(std::string_view dir, std::string_view name) {
  std::filesystem::path folder(dir);
  if (dir.empty()) {
    std::error_code failed;
    folder = std::filesystem::read_symlink("/proc/self/exe", failed).parent_path() / "plugins";
  }
  return folder / fmt::format("relay_{}.so", name);
}

Result<const millrace_relay_plugin*> load_plugin(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) {
    return error(StatusCode::kUnavailable, "the plugin '{}' is not there", path);
  }
  // RTLD_NODELETE and no dlclose(): the plugin's threads and thread-local destructors may run its code until exit.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) return error(StatusCode::kUnavailable, "the plugin cannot be loaded: {}", ::dlerror());
  using Entry = const millrace_relay_plugin* (*)();
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, "millrace_relay_plugin_v1"));
  if (!entry) return error(StatusCode::kUnavailable, "the plugin '{}' has no millrace_relay_plugin_v1", path);
  const millrace_relay_plugin* plugin = entry();
  // `struct_bytes` may be larger: a later version appends functions, which this one does not call.
  if (!plugin || plugin->abi != MILLRACE_RELAY_ABI || plugin->struct_bytes < sizeof(millrace_relay_plugin)) {
    return error(StatusCode::kUnavailable, "the plugin '{}' has interface {} of {} bytes; wanted {} of {}", path,
                 plugin ? plugin->abi : 0, plugin ? plugin->struct_bytes : 0, MILLRACE_RELAY_ABI,
                 sizeof(millrace_relay_plugin));
  }
  if (!name_is_good(plugin->name) || !complete(*plugin)) {
    return error(StatusCode::kUnavailable, "the plugin '{}' has a bad name or lacks a function", path);
  }
  std::array<char, 512> reason{};
  if (plugin->available(reason.data(), reason.size()) != MILLRACE_RELAY_OK) {
    reason.back() = 0;
    return error(StatusCode::kUnavailable, "{}", reason.data());
  }
  return plugin;
}

}  // namespace millrace
