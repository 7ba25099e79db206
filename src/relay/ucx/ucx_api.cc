#include "relay/ucx/ucx_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

// What UCX does inside itself is not ours to mend, and the sanitizers, which see half of it, report false errors:
// its atomics are not seen, a mutex is released at exit by another thread, and what its constructors allocate stays.
// What it calls back into us is seen as ever.
#if defined(__SANITIZE_THREAD__)
extern "C" __attribute__((weak)) const char* __tsan_default_suppressions() {
  return "called_from_lib:libucp.so\ncalled_from_lib:libuct.so\ncalled_from_lib:libucs.so\n"
         "race:libucp.so\nrace:libuct.so\nrace:libucs.so\nmutex:libucs.so\nmutex:_dl_call_fini\nmutex:_dl_fini\n";
}
#elif defined(__SANITIZE_ADDRESS__)
extern "C" __attribute__((weak)) const char* __lsan_default_suppressions() {
  return "leak:libucs.so\nleak:libucp.so\nleak:libuct.so\n";
}
#endif

namespace millrace::ucx {
namespace {

// What UCX reads from the environment when it is loaded, or takes in no other way.
struct Setting {
  const char* name;
  const char* value;
};
constexpr Setting kSettings[] = {
    {"UCX_HANDLE_ERRORS", "none"},       // no handlers of SIGSEGV and its kin
    {"UCX_DEBUG_SIGNO", "0"},            // nor of SIGHUP
    {"UCX_MEM_EVENTS", "n"},             // no patches in mmap and munmap,
    {"UCX_MEM_MALLOC_HOOKS", "n"},       // nor in malloc: neither sanitizers nor we can live with them;
    {"UCX_MEM_MMAP_HOOK_MODE", "none"},  // without them
    {"UCX_MEM_CUDA_HOOK_MODE", "none"},  //
    {"UCX_RCACHE_ENABLE", "n"},          // a cache of registered memory would not notice unmapped memory
    {"UCX_VFS_ENABLE", "n"},             // no thread for its file system
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},   //
    {"UCX_LOG_LEVEL", "fatal"},          // errors come as status codes, and are logged by us
    {"UCX_POSIX_ERROR_HANDLING", "y"},   // else shared memory is left out where errors of a peer are handled
    {"UCX_SYSV_ERROR_HANDLING", "y"},    //
    {"UCX_CMA_MEMORY_INVALIDATE", "y"},  // the same for reads of another process's memory
};

void prepare_environment() {
  for (const Setting& setting : kSettings) setenv(setting.name, setting.value, 0);
}

Result<std::unique_ptr<UcxApi>> look_up(const char* library) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return error(StatusCode::kUnavailable, "UCX is not there: {}", dlerror());
  auto api = std::make_unique<UcxApi>();
#define X(name)                                                                                      \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(handle, #name));                           \
  if (api->name == nullptr) {                                                                        \
    return error(StatusCode::kUnavailable, "the UCX library {} has no function {}", library, #name); \
  }
  MILLRACE_UCX_FUNCTIONS(X)
#undef X
  unsigned major = 0, minor = 0, release = 0;
  api->ucp_get_version(&major, &minor, &release);
  if (major != UCP_API_MAJOR || minor < UCP_API_MINOR) {
    return error(StatusCode::kUnavailable, "the UCX library {} is {}.{}.{}; wanted {}.{} or a later {}.x", library,
                 major, minor, release, UCP_API_MAJOR, UCP_API_MINOR, UCP_API_MAJOR);
  }
  return api;
}

}  // namespace

Result<const UcxApi*> load_ucx(const char* library) {
  static std::mutex mutex;
  static auto* loaded = new std::map<std::string, std::unique_ptr<UcxApi>>;  // for good
  std::lock_guard lock(mutex);
  if (const auto at = loaded->find(library); at != loaded->end()) return at->second.get();
  prepare_environment();
  ASSIGN_OR_RETURN(std::unique_ptr<UcxApi> api, look_up(library));
  return (loaded->emplace(library, std::move(api)).first->second).get();
}

}  // namespace millrace::ucx
