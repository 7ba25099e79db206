// The few functions of libcudart and libnccl that the relay and process groups call, looked up at run time, with
// declarations of our own: neither header nor library is needed to build. Where nccl.h is found at build time,
// nccl_api.cc compares the two.
//
// The libraries stay loaded. Thread safety: load_nccl() from any thread; the table is constant.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace millrace::nccl {

struct UniqueId {
  char internal[128];
};
// The configuration as NCCL 2.14 had it; later versions read `version` and take their defaults for the rest.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
  int unused = -2147483647 - 1;  // "undefined", where later versions have a field
};
struct PointerAttributes {
  int type;  // kMemory...
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[16];  // more than any version has
};

using CommPtr = struct NcclComm*;
using StreamPtr = struct CudaStream*;
using EventPtr = struct CudaEvent*;

// The values that we use of their enumerations.
inline constexpr int kSuccess = 0;  // of both libraries
inline constexpr int kNcclInProgress = 7;
inline constexpr int kNcclUint8 = 1;
inline constexpr int kCudaNotReady = 600;
inline constexpr int kCudaMemcpyDefault = 4;
inline constexpr unsigned kCudaStreamNonBlocking = 1;
inline constexpr unsigned kCudaEventDisableTiming = 2;
inline constexpr int kMemoryDevice = 2;
inline constexpr int kMemoryManaged = 3;
inline constexpr int kOldestNccl = 21400;  // the first that makes communicators without blocking

#define MILLRACE_CUDA_FUNCTIONS(X)                                         \
  X(cudaGetDeviceCount, int(int*))                                         \
  X(cudaGetDevice, int(int*))                                              \
  X(cudaSetDevice, int(int))                                               \
  X(cudaMalloc, int(void**, std::size_t))                                  \
  X(cudaFree, int(void*))                                                  \
  X(cudaMemcpyAsync, int(void*, const void*, std::size_t, int, StreamPtr)) \
  X(cudaPointerGetAttributes, int(PointerAttributes*, const void*))        \
  X(cudaStreamCreateWithFlags, int(StreamPtr*, unsigned))                  \
  X(cudaStreamDestroy, int(StreamPtr))                                     \
  X(cudaEventCreateWithFlags, int(EventPtr*, unsigned))                    \
  X(cudaEventRecord, int(EventPtr, StreamPtr))                             \
  X(cudaEventQuery, int(EventPtr))                                         \
  X(cudaEventDestroy, int(EventPtr))                                       \
  X(cudaGetErrorString, const char*(int))

#define MILLRACE_NCCL_FUNCTIONS(X)                                                     \
  X(ncclGetVersion, int(int*))                                                         \
  X(ncclGetUniqueId, int(UniqueId*))                                                   \
  X(ncclCommInitRankConfig, int(CommPtr*, int, UniqueId, int, Config*))                \
  X(ncclCommGetAsyncError, int(CommPtr, int*))                                         \
  X(ncclCommAbort, int(CommPtr))                                                       \
  X(ncclBroadcast, int(const void*, void*, std::size_t, int, int, CommPtr, StreamPtr)) \
  X(ncclSend, int(const void*, std::size_t, int, int, CommPtr, StreamPtr))             \
  X(ncclRecv, int(void*, std::size_t, int, int, CommPtr, StreamPtr))                   \
  X(ncclGetErrorString, const char*(int))

struct Api {
#define X(name, type) std::add_pointer_t<type> name = nullptr;
  MILLRACE_CUDA_FUNCTIONS(X)
  MILLRACE_NCCL_FUNCTIONS(X)
#undef X
  // OK, or kInternal with what the library calls the error.
  Status cuda(const char* what, int code) const;
  Status nccl(const char* what, int code) const;  // kNcclInProgress is OK
};

// File names for dlopen, tried in order.
struct Libraries {
  std::vector<std::string> cuda = {"libcudart.so.13", "libcudart.so.12", "libcudart.so"};
  std::vector<std::string> nccl = {"libnccl.so.2"};
};

// kUnavailable, with the reason: a library or function that is not there, no CUDA device, too old an NCCL.
Result<const Api*> load_nccl(const Libraries& libraries);

}  // namespace millrace::nccl
