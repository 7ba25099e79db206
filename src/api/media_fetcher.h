// MediaFetcher: gets the files that requests name by http:, https: and file: URLs, and decodes videos, on threads of
// its own, since any of these may be slow. No URL is fetched unless the options name domains or a folder.
//
// Owner: TextService. Thread safety: check() and start() in any thread; stop() once, on the thread that owns it.
// Invariants: `done` of a MediaFetch is called at most once, from a thread of this; never after stop().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/media_root.h"
#include "base/status.h"
#include "http/fetch_policy.h"
#include "media/video.h"
#include "stages/media/media_rows.h"
#include "wire/prompt_media.h"

namespace millrace::api {

inline constexpr std::size_t kMediaFetchesAtOnce = 8;                 // threads
inline constexpr std::size_t kMediaFetchesWaiting = 256;              // of all requests; above: 429
inline constexpr std::size_t kFetchedBytes = std::size_t{512} << 20;  // of all requests that are not read yet: 429
inline constexpr std::size_t kFetchedBytesOfRequest = 2 * wire::kMaxPromptMediaBytes;  // files, and frames: 400
inline constexpr std::chrono::milliseconds kMediaFetchTime{30'000};  // of one request, until its last file begins
inline constexpr std::ptrdiff_t kVideosAtOnce = 2;                   // that are decoded; others wait for them

struct MediaFetchOptions {
  http::FetchPolicy policy;
  std::string root;                  // of file: URLs; "": none are read
  std::optional<VideoFacts> videos;  // of the model; nullopt: none are decoded
  VideoLimits video_limits;
};

// A file that a request names.
struct FetchedMedia {
  std::string key;                      // its URL
  std::string name;                     // of the field, in errors
  std::string bytes = {};               // once it is fetched; of a video, until it is decoded
  bool video = false;                   // it is decoded too
  bool here = false;                    // `bytes` are here: nothing is fetched, and the key is no URL
  std::vector<PromptItem> frames = {};  // of a video
};

// The files of one request, as they come. `done` gets the first error, or OK when all of the files have come.
class MediaFetch {
 public:
  using Done = std::function<void(const std::shared_ptr<MediaFetch>&, const Status&)>;

  MediaFetch(std::vector<FetchedMedia> files, Done done);
  ~MediaFetch();  // its bytes count no longer

  // The client is gone: what waits is not begun, what runs ends soon, and `done` is not called.
  void cancel() { cancelled_.store(true); }
  // Of a fetch that is done.
  std::vector<FetchedMedia> take_files() { return std::move(files_); }

 private:
  friend class MediaFetcher;

  std::vector<FetchedMedia> files_;
  const Done done_;
  const std::chrono::steady_clock::time_point deadline_;
  std::atomic<bool> cancelled_{false};  // or ended
  std::atomic<std::size_t> missing_, bytes_{0};
  std::shared_ptr<std::atomic<std::size_t>> all_bytes_;  // of the fetcher
};

class MediaFetcher {
 public:
  // `policy.max_bytes` is set here. kInvalidArgument: the folder is none.
  static Result<std::unique_ptr<MediaFetcher>> make(MediaFetchOptions options);
  ~MediaFetcher() { stop(); }
  MediaFetcher(const MediaFetcher&) = delete;
  MediaFetcher& operator=(const MediaFetcher&) = delete;

  bool fetches_any() const { return !options_.policy.domains.empty() || root_.is_open(); }
  // Whether such a URL is fetched; nothing is connected to or opened. kUnsupported, kInvalidArgument.
  Status check(const std::string& url) const;
  // kResourceExhausted: too many wait.
  Status start(const std::shared_ptr<MediaFetch>& fetch);
  // Ends what runs and forgets what waits.
  void stop();

 private:
  MediaFetcher(MediaFetchOptions options, MediaRoot root);
  void run();
  void work(const std::shared_ptr<MediaFetch>& fetch, std::size_t index);
  Status get(MediaFetch& fetch, FetchedMedia& file);
  Result<std::string> fetch_file(MediaFetch& fetch, const std::string& url);
  Status decode(MediaFetch& fetch, FetchedMedia& file);
  Status take_bytes(MediaFetch& fetch, std::size_t size);

  const MediaFetchOptions options_;
  const MediaRoot root_;
  const std::shared_ptr<std::atomic<std::size_t>> bytes_ = std::make_shared<std::atomic<std::size_t>>(0);

  std::counting_semaphore<kVideosAtOnce> decoders_{kVideosAtOnce};

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<std::pair<std::shared_ptr<MediaFetch>, std::size_t>> waiting_;
  std::atomic<bool> stopped_{false};
  std::vector<std::thread> threads_;
};

}  // namespace millrace::api
