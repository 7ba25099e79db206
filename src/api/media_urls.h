// MediaUrls: the URLs of one request whose files are fetched, and the videos that are decoded, before its prompt can be
// made. A handler runs twice: the first time it checks everything and the URLs are noted, the second time their files
// are here (api/fetching_route.h).
//
// Owner: the request. Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/media_fetcher.h"
#include "base/status.h"

namespace millrace::api {

class MediaUrls {
 public:
  // null: nothing is fetched.
  explicit MediaUrls(const MediaFetcher* fetcher) : fetcher_(fetcher) {}

  // The file of a URL; null: it is noted now, and fetched if the rest of the request is fine. `name`: of its field, in
  // errors. kUnsupported, kInvalidArgument.
  Result<const std::string*> find(std::string_view url, const std::string& name);
  // The same of a video, by a data: URL too: its frames, which are decoded on the fetcher's threads.
  Result<const std::vector<PromptItem>*> find_video(std::string_view url, const std::string& name);
  // Behind all that can be checked without the files: an error where some are missing, which makes wanted() true. With
  // set_fetched() before it, kConflict: the request has become another one.
  Status check_complete();
  bool wanted() const { return wanted_; }

  std::vector<FetchedMedia> take_missing();
  void set_fetched(std::vector<FetchedMedia> files);

 private:
  Status check(std::string_view url, const std::string& name) const;
  const FetchedMedia* find(const std::string& key, bool video) const;
  void note(FetchedMedia file);

  const MediaFetcher* const fetcher_;
  std::vector<FetchedMedia> missing_, fetched_;
  bool wanted_ = false;
};

}  // namespace millrace::api
