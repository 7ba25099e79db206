// MediaIds: numbers that stand for pictures in the keys of the prefix cache. Each row of a picture has, instead of a
// token id, the negative number of the picture's digest; which row of it that is follows from the prefix. So prompts
// share what comes before their first differing picture, and no digest can be taken for a token or for another digest.
//
// A number is given once and never again to another digest: a page whose key has it means that digest for ever. So the
// table may forget a digest at any time; its next prompt then finds nothing cached, and that is all. Numbers end at
// kLastMediaId after 2^31 - 2 new digests, when id() returns kNoMediaId.
//
// Owner: one scheduler, beside its cache. Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <string>
#include <unordered_map>

#include "base/status.h"

namespace millrace {

inline constexpr int32_t kFirstMediaId = -2;  // -1 is kTokenInFlight
inline constexpr int32_t kLastMediaId = std::numeric_limits<int32_t>::min() + 1;
inline constexpr int32_t kNoMediaId = std::numeric_limits<int32_t>::min();
inline constexpr std::size_t kMaxKnownMedia = std::size_t{1} << 16;  // digests that a table remembers

// Whether a key stands for a row of a picture.
inline constexpr bool is_media_id(int32_t key) { return key <= kFirstMediaId; }

class MediaIds {
 public:
  explicit MediaIds(std::size_t max_known = kMaxKnownMedia, int32_t first = kFirstMediaId)
      : max_known_(max_known), next_(first) {
    CHECK(max_known >= 1 && is_media_id(first));
  }

  // The number of this digest, a new one where it is not known. kNoMediaId: all are given away.
  int32_t id(const std::string& digest) {
    if (const auto known = by_digest_.find(digest); known != by_digest_.end()) {
      latest_.splice(latest_.begin(), latest_, known->second);
      return latest_.front().id;
    }
    if (next_ == kNoMediaId) return kNoMediaId;
    if (latest_.size() >= max_known_) {
      by_digest_.erase(latest_.back().digest);
      latest_.pop_back();
    }
    latest_.push_front({digest, next_--});
    by_digest_[digest] = latest_.begin();
    return latest_.front().id;
  }

  std::size_t known() const { return latest_.size(); }

 private:
  struct Known {
    std::string digest;
    int32_t id = 0;
  };

  const std::size_t max_known_;
  int32_t next_;
  std::list<Known> latest_;  // the latest asked for first
  std::unordered_map<std::string, std::list<Known>::iterator> by_digest_;
};

}  // namespace millrace
