#include "api/media_urls.h"

#include <algorithm>
#include <utility>

#include "media/data_url.h"

namespace millrace::api {

const FetchedMedia* MediaUrls::find(const std::string& key, bool video) const {
  const auto found =
      std::ranges::find_if(fetched_, [&](const FetchedMedia& file) { return file.video == video && file.key == key; });
  return found == fetched_.end() ? nullptr : &*found;
}

void MediaUrls::note(FetchedMedia file) {
  const bool known = std::ranges::any_of(
      missing_, [&](const FetchedMedia& one) { return one.video == file.video && one.key == file.key; });
  if (!known) missing_.push_back(std::move(file));
}

Status MediaUrls::check(std::string_view url, const std::string& name) const {
  if (fetcher_ != nullptr && fetcher_->fetches_any()) return fetcher_->check(std::string(url)).with_prefix(name);
  return error(StatusCode::kUnsupported,
               "{} begins with '{}'; wanted a data: URL, or a server with --media-allowed-domains or --media-root",
               name, url.substr(0, 8));
}

Result<const std::string*> MediaUrls::find(std::string_view url, const std::string& name) {
  if (const FetchedMedia* file = find(std::string(url), false)) return &file->bytes;
  RETURN_IF_ERROR(check(url, name));
  note({.key = std::string(url), .name = name});
  return nullptr;
}

Result<const std::vector<PromptItem>*> MediaUrls::find_video(std::string_view url, const std::string& name) {
  const bool data = is_data_url(url);
  const std::string key = data ? name : std::string(url);
  if (const FetchedMedia* file = find(key, true)) return &file->frames;
  if (fetcher_ == nullptr)
    return error(StatusCode::kUnsupported, "{} is a video, which this endpoint does not take", name);
  if (!data) {
    RETURN_IF_ERROR(check(url, name));
    note({.key = key, .name = name, .video = true});
    return nullptr;
  }
  const auto read = read_data_url(url, wire::kMaxMediaBytes);
  if (!read.ok()) return read.status().with_prefix(name);
  note({.key = key, .name = name, .bytes = {read->bytes.begin(), read->bytes.end()}, .video = true, .here = true});
  return nullptr;
}

Status MediaUrls::check_complete() {
  wanted_ = !missing_.empty() && fetched_.empty();
  if (missing_.empty()) return ok_status();
  // The second time all that the first one noted are here, but a stored response that the request refers to may have
  // become another one meanwhile.
  if (!wanted_) {
    return error(StatusCode::kConflict, "{} has changed while files were fetched; try again", missing_.front().name);
  }
  return error(StatusCode::kUnavailable, "{} is not fetched yet", missing_.front().name);
}

std::vector<FetchedMedia> MediaUrls::take_missing() {
  CHECK(wanted_ && !missing_.empty());
  wanted_ = false;
  return std::exchange(missing_, {});
}

void MediaUrls::set_fetched(std::vector<FetchedMedia> files) {
  CHECK(fetched_.empty() && missing_.empty());
  fetched_ = std::move(files);
}

}  // namespace millrace::api
