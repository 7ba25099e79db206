#include "api/media_fetcher.h"

#include <pthread.h>

#include <algorithm>

#include "http/fetch.h"
#include "http/message.h"
#include "stages/media/prompt_video.h"
#include "wire/prompt_media.h"

namespace millrace::api {
namespace {

bool has_scheme(const std::string& url, std::string_view scheme) {
  return url.size() > scheme.size() && http::equals_ignore_case(std::string_view(url).substr(0, scheme.size()), scheme);
}

bool is_file_url(const std::string& url) { return has_scheme(url, "file:"); }

Status waited_too_long() {
  return error(StatusCode::kResourceExhausted, "it waited over {} ms for its turn; try again later",
               kMediaFetchTime.count());
}

}  // namespace

MediaFetch::MediaFetch(std::vector<FetchedMedia> files, Done done)
    : files_(std::move(files)),
      done_(std::move(done)),
      deadline_(std::chrono::steady_clock::now() + kMediaFetchTime),
      missing_(files_.size()) {
  CHECK(!files_.empty() && done_ != nullptr);
}

MediaFetch::~MediaFetch() {
  if (all_bytes_ != nullptr) all_bytes_->fetch_sub(bytes_.load());
}

Result<std::unique_ptr<MediaFetcher>> MediaFetcher::make(MediaFetchOptions options) {
  options.policy.max_bytes = wire::kMaxMediaBytes;
  MediaRoot root;
  if (!options.root.empty()) {
    ASSIGN_OR_RETURN(root, MediaRoot::open(options.root));
  }
  return std::unique_ptr<MediaFetcher>(new MediaFetcher(std::move(options), std::move(root)));
}

MediaFetcher::MediaFetcher(MediaFetchOptions options, MediaRoot root)
    : options_(std::move(options)), root_(std::move(root)) {}

Status MediaFetcher::check(const std::string& url) const {
  if (is_file_url(url) && root_.is_open()) return root_.path_of(url).status();
  if (has_scheme(url, "http:") || has_scheme(url, "https:")) {
    if (!options_.policy.domains.empty()) return http::check_fetch_url(url, options_.policy).status();
  }
  return error(StatusCode::kUnsupported, "the URL begins with '{}'; wanted a data: URL{}{}", url.substr(0, 8),
               options_.policy.domains.empty() ? "" : ", http: or https:", root_.is_open() ? ", or file:" : "");
}

Status MediaFetcher::start(const std::shared_ptr<MediaFetch>& fetch) {
  const std::size_t count = fetch->files_.size();
  CHECK(fetch->all_bytes_ == nullptr);  // a fetch is started once
  fetch->all_bytes_ = bytes_;
  for (const FetchedMedia& file : fetch->files_) RETURN_IF_ERROR(take_bytes(*fetch, file.bytes.size()));
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return Status(StatusCode::kUnavailable, "the server is shutting down");
    if (waiting_.size() + count > kMediaFetchesWaiting) {
      return error(
          StatusCode::kResourceExhausted,
          "{} files of URLs wait to be fetched, and this request has {}; wanted at most {} together: try again "
          "later",
          waiting_.size(), count, kMediaFetchesWaiting);
    }
    for (std::size_t i = 0; i < count; ++i) waiting_.emplace_back(fetch, i);
    while (threads_.size() < kMediaFetchesAtOnce) threads_.emplace_back([this] { run(); });  // of the first request
  }
  wake_.notify_all();
  return ok_status();
}

void MediaFetcher::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    waiting_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void MediaFetcher::run() {
  pthread_setname_np(pthread_self(), "media-fetch");
  while (true) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
    if (stopped_) return;
    const auto [fetch, index] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work(fetch, index);
  }
}

void MediaFetcher::work(const std::shared_ptr<MediaFetch>& fetch, std::size_t index) {
  if (fetch->cancelled_) return;
  CHECK(index < fetch->files_.size());
  FetchedMedia& file = fetch->files_[index];
  const Status status = get(*fetch, file).with_prefix(file.name);
  if (stopped_ || (status.ok() && --fetch->missing_ > 0)) return;
  // A client that left cancelled it; then nothing is reported. The first error cancels the other files.
  if (!fetch->cancelled_.exchange(true)) fetch->done_(fetch, status);
}

// Of one request and of all: what is over a limit counts until the request is gone.
Status MediaFetcher::take_bytes(MediaFetch& fetch, std::size_t size) {
  const std::size_t of_request = fetch.bytes_.fetch_add(size) + size;
  const std::size_t of_all = bytes_->fetch_add(size) + size;
  if (of_request > kFetchedBytesOfRequest) {
    return error(StatusCode::kTooLarge, "the files of the request's URLs have over {} bytes; wanted at most so many",
                 kFetchedBytesOfRequest);
  }
  if (of_all <= kFetchedBytes) return ok_status();
  return error(StatusCode::kResourceExhausted,
               "files of {} bytes are being fetched; wanted at most {}: try again later", of_all, kFetchedBytes);
}

Status MediaFetcher::get(MediaFetch& fetch, FetchedMedia& file) {
  if (!file.here) {
    ASSIGN_OR_RETURN(file.bytes, fetch_file(fetch, file.key));
  }
  return file.video ? decode(fetch, file) : ok_status();
}

Status MediaFetcher::decode(MediaFetch& fetch, FetchedMedia& file) {
  CHECK(options_.videos);  // a video for another model is refused before it is fetched
  const auto cancelled = [&] { return fetch.cancelled_ || stopped_; };
  while (!decoders_.try_acquire_for(std::chrono::milliseconds(100))) {
    if (cancelled()) return Status(StatusCode::kCancelled, "the client went away");
    if (std::chrono::steady_clock::now() > fetch.deadline_) return waited_too_long();
  }
  auto frames = read_video(file.bytes, *options_.videos, options_.video_limits, cancelled);
  decoders_.release();
  RETURN_IF_ERROR(frames.status());
  file.frames = std::move(frames).value();
  file.bytes = {};
  std::size_t size = 0;
  for (const PromptItem& item : file.frames) size += item.media.bytes.bytes.size();
  return take_bytes(fetch, size);
}

Result<std::string> MediaFetcher::fetch_file(MediaFetch& fetch, const std::string& url) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(fetch.deadline_ - std::chrono::steady_clock::now());
  if (left.count() <= 0) return waited_too_long();
  const auto take = [&](std::size_t size) { return take_bytes(fetch, size); };
  if (is_file_url(url)) {
    ASSIGN_OR_RETURN(const std::string path, root_.path_of(url));
    return root_.read(path, options_.policy.max_bytes, take);
  }
  http::FetchPolicy policy = options_.policy;
  policy.timeout = std::min(policy.timeout, left);
  return http::fetch(url, policy, {.cancelled = [&] { return fetch.cancelled_ || stopped_; }, .take_bytes = take});
}

}  // namespace millrace::api
