// UcxApi: the functions of libucp that the relay calls, looked up in the library at run time.
//
// The library stays loaded: it has constructors and caches that do not bear being unloaded. Before it is loaded,
// environment variables are set (those that are not set yet) that keep it from catching signals, hooking malloc and
// mmap, and starting a thread of its own for a file system that this program does not use.
//
// Thread safety: load_ucx() from any thread; the table is constant.
#pragma once

#include <ucp/api/ucp.h>

#include "base/status.h"

namespace millrace::ucx {

#define MILLRACE_UCX_FUNCTIONS(X)   \
  X(ucp_get_version)                \
  X(ucp_get_version_string)         \
  X(ucp_config_read)                \
  X(ucp_config_modify)              \
  X(ucp_config_release)             \
  X(ucp_init_version)               \
  X(ucp_cleanup)                    \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_query)               \
  X(ucp_listener_create)            \
  X(ucp_listener_query)             \
  X(ucp_listener_reject)            \
  X(ucp_listener_destroy)           \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_arm)                 \
  X(ucp_worker_progress)            \
  X(ucp_worker_set_am_recv_handler) \
  X(ucp_ep_create)                  \
  X(ucp_ep_close_nbx)               \
  X(ucp_am_send_nbx)                \
  X(ucp_am_recv_data_nbx)           \
  X(ucp_request_free)               \
  X(ucp_request_check_status)       \
  X(ucp_mem_map)                    \
  X(ucp_mem_query)                  \
  X(ucp_mem_unmap)                  \
  X(ucp_rkey_pack)                  \
  X(ucp_rkey_buffer_release)        \
  X(ucp_ep_rkey_unpack)             \
  X(ucp_rkey_ptr)                   \
  X(ucp_rkey_destroy)               \
  X(ucs_status_string)

struct UcxApi {
#define X(name) decltype(&::name) name = nullptr;
  MILLRACE_UCX_FUNCTIONS(X)
#undef X
};

// kUnavailable: not there, or it lacks a function; the message is the loader's.
Result<const UcxApi*> load_ucx(const char* library);

}  // namespace millrace::ucx
