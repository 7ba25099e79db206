#include "nccl/nccl_api.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

#ifdef MILLRACE_NCCL_HEADER
#include <nccl.h>
#endif

namespace millrace::nccl {

#ifdef MILLRACE_NCCL_HEADER
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
static_assert(kSuccess == ncclSuccess && kSuccess == cudaSuccess);
static_assert(kNcclInProgress == ncclInProgress && kNcclUint8 == ncclUint8 && sizeof(ncclResult_t) == sizeof(int));
static_assert(kCudaNotReady == cudaErrorNotReady && kCudaMemcpyDefault == cudaMemcpyDefault);
static_assert(kCudaStreamNonBlocking == cudaStreamNonBlocking && kCudaEventDisableTiming == cudaEventDisableTiming);
static_assert(kMemoryDevice == cudaMemoryTypeDevice && kMemoryManaged == cudaMemoryTypeManaged);
static_assert(sizeof(PointerAttributes) >= sizeof(cudaPointerAttributes));
static_assert(offsetof(PointerAttributes, device) == offsetof(cudaPointerAttributes, device));
static_assert(offsetof(PointerAttributes, device_pointer) == offsetof(cudaPointerAttributes, devicePointer));
#endif

Status Api::cuda(const char* what, int code) const {
  if (code == kSuccess) return ok_status();
  return error(StatusCode::kInternal, "{}: CUDA error {}, {}", what, code, cudaGetErrorString(code));
}

Status Api::nccl(const char* what, int code) const {
  if (code == kSuccess || code == kNcclInProgress) return ok_status();
  return error(StatusCode::kInternal, "{}: NCCL error {}, {}", what, code, ncclGetErrorString(code));
}

namespace {

// RTLD_LOCAL: what else this process loads must not find symbols of these libraries by chance. They are never closed,
// as the driver's threads run their code.
Result<void*> open_first(const std::vector<std::string>& names) {
  std::string reasons;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
  }
  return Status(StatusCode::kUnavailable, reasons);
}

Result<std::unique_ptr<Api>> look_up(const Libraries& libraries) {
  auto api = std::make_unique<Api>();
#define X(name, type)                                                                \
  api->name = reinterpret_cast<std::add_pointer_t<type>>(dlsym(library, #name));     \
  if (api->name == nullptr) {                                                        \
    return error(StatusCode::kUnavailable, "the library has no function {}", #name); \
  }
  void* library = nullptr;
  ASSIGN_OR_RETURN(library, open_first(libraries.cuda));
  MILLRACE_CUDA_FUNCTIONS(X)
  // Asked before NCCL is loaded, which is large.
  int devices = 0;
  if (const int code = api->cudaGetDeviceCount(&devices); code != kSuccess) {
    return error(StatusCode::kUnavailable, "no CUDA device: {}", api->cudaGetErrorString(code));
  }
  if (devices < 1) return Status(StatusCode::kUnavailable, "no CUDA device: the count is 0");
  ASSIGN_OR_RETURN(library, open_first(libraries.nccl));
  MILLRACE_NCCL_FUNCTIONS(X)
#undef X
  int version = 0;
  if (const Status got = api->nccl("ncclGetVersion", api->ncclGetVersion(&version)); !got.ok()) {
    return error(StatusCode::kUnavailable, "{}", got.message());
  }
  if (version < kOldestNccl) {
    return error(StatusCode::kUnavailable, "the NCCL library has version {}; wanted {} or later", version, kOldestNccl);
  }
  return api;
}

}  // namespace

Result<const Api*> load_nccl(const Libraries& libraries) {
  static std::mutex mutex;
  static auto* loaded = new std::map<std::string, std::unique_ptr<Api>>;  // for good
  // By file names: a test loads its double beside the real ones.
  std::string key;
  for (const std::string& name : libraries.cuda) key += name + '\n';
  for (const std::string& name : libraries.nccl) key += name + '\n';
  std::lock_guard lock(mutex);
  if (const auto at = loaded->find(key); at != loaded->end()) return at->second.get();
  // A failure is not kept: a library may be installed while the process runs. The mutex is held meanwhile, so that no
  // two threads load.
  ASSIGN_OR_RETURN(std::unique_ptr<Api> api, look_up(libraries));
  return loaded->emplace(key, std::move(api)).first->second.get();
}

}  // namespace millrace::nccl
