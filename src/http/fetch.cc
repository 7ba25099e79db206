#include "http/fetch.h"

#include <curl/curl.h>

#include <utility>

#include "base/log.h"
#include "http/address_check.h"
#include "http/curl_handle.h"

namespace millrace::http {
namespace {

constexpr long kConnectTimeoutMs = 5'000;

struct Transfer {
  const FetchPolicy& policy;
  const FetchControl& control;
  CURL* curl = nullptr;
  std::string body;
  std::size_t head_bytes = 0;
  bool refused_address = false;
  Status stopped;  // why this side ended it
};

long status_of(CURL* curl) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

Status wrong_status(long status) {
  const bool redirect = status >= 300 && status < 400;
  return invalid_argument("its server answered {}; wanted 200{}", status,
                          redirect ? ": redirects are not followed" : "");
}

Status too_large(std::size_t most) {
  return error(StatusCode::kTooLarge, "its server sends over {} bytes; wanted at most so many", most);
}

curl_socket_t open_socket(void* context, curlsocktype /*purpose*/, curl_sockaddr* address) {
  auto& transfer = *static_cast<Transfer*>(context);
  if (!transfer.policy.private_networks && !is_public_address(address->addr)) {
    transfer.refused_address = true;
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

std::size_t on_head(char* /*data*/, std::size_t /*one*/, std::size_t size, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  transfer.head_bytes += size;
  if (transfer.head_bytes <= kMaxFetchHeadBytes) return size;
  transfer.stopped = invalid_argument("its server sends over {} bytes of header fields", kMaxFetchHeadBytes);
  return 0;
}

std::size_t on_body(char* data, std::size_t /*one*/, std::size_t size, void* context) {
  auto& transfer = *static_cast<Transfer*>(context);
  if (const long status = status_of(transfer.curl); status != 200) {
    transfer.stopped = wrong_status(status);
  } else if (transfer.body.size() + size > transfer.policy.max_bytes) {
    transfer.stopped = too_large(transfer.policy.max_bytes);
  } else {
    transfer.stopped = transfer.control.take_bytes(size);
  }
  if (!transfer.stopped.ok()) return 0;
  transfer.body.append(data, size);
  return size;
}

int on_progress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<Transfer*>(context)->control.cancelled() ? 1 : 0;
}

void set_options(CURL* curl, Transfer& transfer, CURLU* url) {
  curl_easy_setopt(curl, CURLOPT_CURLU, url);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_PROXY, "");  // also not those of the environment
  curl_easy_setopt(curl, CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "millrace");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);  // a look-up that hangs does not hold the end up
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(transfer.policy.timeout.count()));
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs);
  curl_easy_setopt(curl, CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(transfer.policy.max_bytes));
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, open_socket);
  curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_head);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
}

// The client learns nothing of a network that it does not see, and the log has the reason.
Status unreachable(const std::string& host, const Transfer& transfer, CURLcode code) {
  LOG_INFO("media: no connection to {}: {}", host,
           transfer.refused_address ? "its address is not public" : curl_easy_strerror(code));
  return invalid_argument("its host '{}' could not be reached; wanted a server that answers", host.substr(0, 64));
}

Status failed(const std::string& host, const Transfer& transfer, CURLcode code) {
  if (!transfer.stopped.ok()) return transfer.stopped;
  if (code == CURLE_ABORTED_BY_CALLBACK) return Status(StatusCode::kCancelled, "the client went away");
  if (code == CURLE_FILESIZE_EXCEEDED) return too_large(transfer.policy.max_bytes);
  curl_off_t first_byte_us = 0;
  curl_easy_getinfo(transfer.curl, CURLINFO_PRETRANSFER_TIME_T, &first_byte_us);
  if (first_byte_us == 0) return unreachable(host, transfer, code);  // before there was a connection, TLS included
  if (code == CURLE_OPERATION_TIMEDOUT) {
    return invalid_argument("it did not arrive within {} ms", transfer.policy.timeout.count());
  }
  return invalid_argument("its server broke off; wanted all that it announced");
}

}  // namespace

Result<std::string> fetch(std::string_view url, const FetchPolicy& policy, const FetchControl& control) {
  RETURN_IF_ERROR(start_curl());
  ASSIGN_OR_RETURN(const ParsedUrl parsed, check_fetch_url(url, policy));
  const CurlHandle curl(curl_easy_init());
  if (curl == nullptr) return internal_error("libcurl gives no handle");
  Transfer transfer{.policy = policy, .control = control, .curl = curl.get(), .stopped = ok_status()};
  set_options(curl.get(), transfer, parsed.get());
  CurlList addresses;
  for (const std::string& address : policy.addresses) {
    addresses.reset(curl_slist_append(addresses.release(), address.c_str()));
  }
  if (addresses != nullptr) curl_easy_setopt(curl.get(), CURLOPT_RESOLVE, addresses.get());
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK) return failed(host_of(parsed), transfer, code);
  if (const long status = status_of(curl.get()); status != 200) return wrong_status(status);
  return std::move(transfer.body);
}

}  // namespace millrace::http
