// What every user of libcurl here begins with: its start, once a process, and handles that free themselves.
//
// Thread safety: start_curl() from any thread; a handle belongs to one thread at a time.
#pragma once

#include <curl/curl.h>

#include <memory>

#include "base/status.h"

namespace millrace::http {

struct CurlDeleter {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using CurlHandle = std::unique_ptr<CURL, CurlDeleter>;
using CurlList = std::unique_ptr<curl_slist, CurlDeleter>;
using CurlUrl = std::unique_ptr<CURLU, CurlDeleter>;

inline Status start_curl() {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
  return started == CURLE_OK ? ok_status() : internal_error("libcurl does not start: {}", curl_easy_strerror(started));
}

}  // namespace millrace::http
