#include "api/media_urls.h"

#include <algorithm>
#include <utility>

namespace millrace::api {

Result<const std::string*> MediaUrls::find(std::string_view url, const std::string& name) {
  for (const FetchedMedia& file : fetched_) {
    if (file.url == url) return &file.bytes;
  }
  if (fetcher_ == nullptr) {
    return error(StatusCode::kUnsupported, "{} begins with '{}'; wanted a data: URL: no others are read", name,
                 url.substr(0, 8));
  }
  RETURN_IF_ERROR(fetcher_->check(std::string(url)).with_prefix(name));
  const bool noted = std::ranges::any_of(missing_, [&](const FetchedMedia& file) { return file.url == url; });
  if (!noted) missing_.push_back({.url = std::string(url), .name = name});
  return nullptr;
}

Status MediaUrls::check_complete() {
  wanted_ = !missing_.empty();
  if (!wanted_) return ok_status();
  CHECK(fetched_.empty());  // the second time, all that the first one noted are here
  return error(StatusCode::kUnavailable, "{} is not fetched yet", missing_.front().name);
}

std::vector<FetchedMedia> MediaUrls::take_missing() {
  wanted_ = false;
  return std::exchange(missing_, {});
}

void MediaUrls::set_fetched(std::vector<FetchedMedia> files) { fetched_ = std::move(files); }

}  // namespace millrace::api
