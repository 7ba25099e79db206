// MediaEncoder: from the pictures of requests to their features, on a thread of its own, so that no step waits for
// them. Equal pictures are encoded once: those that requests wait for at the same time, and those whose features are
// still in the cache. A picture that no request waits for any more is not encoded further.
//
// Owner: the worker `generate`. Thread safety: the worker's thread only; the encoding thread is inside.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "stages/media/byte_cache.h"
#include "stages/media/media_model.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr std::size_t kMaxEncoding = 256;                                  // pictures that wait or are encoded
inline constexpr std::size_t kMaxEncodingBytes = std::size_t{512} << 20;          // of their files
inline constexpr std::size_t kDefaultEncoderCacheBytes = std::size_t{256} << 20;  // of features that are kept

struct EncoderCounters {
  uint64_t encoded = 0;  // pictures
  uint64_t failed = 0;
  uint64_t found = 0;   // in the cache
  uint64_t joined = 0;  // one that was on its way already
  double seconds = 0;   // of encoding
};

class MediaEncoder {
 public:
  using Encoded = Result<std::shared_ptr<const PromptInput>>;

  explicit MediaEncoder(std::unique_ptr<MediaModel> model, std::size_t cache_bytes = kDefaultEncoderCacheBytes);
  ~MediaEncoder();

  // The input of a prompt of so many rows where all features are known; nullopt: take_finished() will have it, for
  // `id`. Takes the files out of `media`, whose other fields the caller has checked (check_prompt_media).
  // kResourceExhausted over kMaxEncoding or kMaxEncodingBytes.
  std::optional<Encoded> encode(ReqId id, std::vector<wire::PromptMedia>& media, int32_t rows);
  // What was encoded since the last call; errors name the picture's field.
  std::vector<std::pair<ReqId, Encoded>> take_finished();
  // The request wants nothing any more. Ids that do not wait are ignored.
  void drop(ReqId id);
  // Forgets all features that are kept.
  void flush() { cache_.clear(); }

  std::size_t waiting() const { return waiting_.size(); }  // requests
  std::size_t cached_bytes() const { return cache_.bytes(); }
  const EncoderCounters& counters() const { return counters_; }
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  using Features = Result<MediaFeatures>;
  struct Job {
    wire::PromptMedia media;
    std::shared_ptr<std::atomic<bool>> wanted;
  };
  struct Finished {
    wire::PromptMedia media;
    Features features;
    double seconds = 0;
  };
  struct Waiting {
    std::vector<wire::PromptMedia> media;  // without their files
    std::vector<std::optional<MediaFeatures>> features;
    int32_t rows = 0;
    std::size_t missing = 0;
  };
  struct UnderWay {
    std::vector<ReqId> requests;
    std::shared_ptr<std::atomic<bool>> wanted;
    std::size_t bytes = 0;
  };

  void encode_main();
  const MediaFeatures* find(const std::string& digest);
  Status start(ReqId id, wire::PromptMedia& media);
  std::shared_ptr<const PromptInput> make_input(Waiting& waiting) const;
  void queue(wire::PromptMedia media, const UnderWay& one);
  void settle(Finished one, std::vector<std::pair<ReqId, Encoded>>& out);

  const std::unique_ptr<MediaModel> model_;

  // The worker's thread.
  ByteCache<MediaFeatures> cache_;             // by digest
  std::map<std::string, UnderWay> under_way_;  // by digest
  std::size_t under_way_bytes_ = 0;
  std::map<ReqId, Waiting> waiting_;
  EncoderCounters counters_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queued_;  // guarded by mutex_, like the next two
  std::vector<Finished> finished_;
  bool stopping_ = false;
  std::atomic<bool> ending_{false};

  std::thread thread_;  // last: it uses everything above
};

// Whether the rows of `media` lie in the prompt as they must: ascending, apart, inside it, with rows, digests and files
// inside their limits. kInvalidArgument with the value seen and the one wanted.
Status check_prompt_media(std::span<const wire::PromptMedia> media, int32_t rows);

}  // namespace millrace
