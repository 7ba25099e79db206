// MediaRoot: the folder below which file: URLs are read. A path is walked one component after the other with no link
// followed, so that nothing outside is reached, whatever is renamed meanwhile; and only regular files are read, so that
// no pipe or device holds a thread up.
//
// Owner: MediaFetcher. Thread safety: constant after open(); read() in any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::api {

class MediaRoot {
 public:
  MediaRoot() = default;
  ~MediaRoot();
  MediaRoot(MediaRoot&& other) noexcept;
  MediaRoot& operator=(MediaRoot&& other) noexcept;

  // An absolute or relative path; links in it are resolved now. kInvalidArgument: no folder that can be opened.
  static Result<MediaRoot> open(const std::string& folder);

  bool is_open() const { return descriptor_ >= 0; }
  // The path below the folder that `url` ("file:///folder/a.png") names. kInvalidArgument: it is not below it.
  Result<std::string> path_of(std::string_view url) const;
  // `path`: of path_of(). `take_bytes` is asked before memory is taken. kInvalidArgument: no such regular file;
  // kTooLarge.
  Result<std::string> read(const std::string& path, std::size_t max_bytes,
                           const std::function<Status(std::size_t)>& take_bytes) const;

 private:
  int descriptor_ = -1;
  std::string given_, real_;  // without a slash at the end
};

}  // namespace millrace::api
