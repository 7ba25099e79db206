// ByteCache: values by a key, the latest used of them within a limit of bytes. A value is cheap to copy (it shares its
// bytes), so one that was found stays good when the cache forgets it.
//
// Owner: its maker. Thread safety: none; one thread.
#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>
#include <utility>

namespace millrace {

template <typename T>
class ByteCache {
 public:
  explicit ByteCache(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Null: it is not known. Otherwise valid until the next call.
  const T* find(const std::string& key) {
    const auto known = by_key_.find(key);
    if (known == by_key_.end()) return nullptr;
    kept_.splice(kept_.begin(), kept_, known->second);
    return &kept_.front().value;
  }

  // Forgets the least recently used ones over the limit. One that is larger than the limit, or known, changes nothing.
  void keep(const std::string& key, T value, std::size_t bytes) {
    if (bytes > limit_bytes_ || find(key) != nullptr) return;
    kept_.push_front({key, std::move(value), bytes});
    by_key_[key] = kept_.begin();
    bytes_ += bytes;
    while (bytes_ > limit_bytes_) {
      bytes_ -= kept_.back().bytes;
      by_key_.erase(kept_.back().key);
      kept_.pop_back();
    }
  }

  void clear() {
    kept_.clear();
    by_key_.clear();
    bytes_ = 0;
  }

  std::size_t bytes() const { return bytes_; }

 private:
  struct Kept {
    std::string key;
    T value;
    std::size_t bytes = 0;
  };

  const std::size_t limit_bytes_;
  std::list<Kept> kept_;  // the latest used first
  std::unordered_map<std::string, typename std::list<Kept>::iterator> by_key_;
  std::size_t bytes_ = 0;
};

}  // namespace millrace
