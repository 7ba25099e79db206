// PageIo: reads and writes a PageFolder on a thread of its own. What is read comes before what is saved: a request
// waits for it.
//
// Owner: SavedPrefixes. Thread safety: the owner's thread. The destructor writes what was saved.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "stages/kv_disk/page_folder.h"
#include "tensor/shared_bytes.h"

namespace millrace::kv_disk {

class PageIo {
 public:
  explicit PageIo(std::unique_ptr<PageFolder> folder);
  ~PageIo();

  // As in PageFolder.
  bool contains(const BlockDigest& digest) const { return folder_->contains(digest); }
  bool mark_used(const BlockDigest& digest) const { return folder_->mark_used(digest); }

  // Pages that follow each other. `ticket` names the result; how many are under way, the caller limits.
  void load(uint64_t ticket, std::vector<PageName> pages, std::size_t page_bytes);
  // The result is not wanted any more, and does not come where the read has not begun.
  void cancel(uint64_t ticket);
  struct Loaded {
    uint64_t ticket = 0;
    int32_t pages = 0;  // of those that were asked for, up to the first that cannot be had
    SharedBytes bytes;
    Status status;  // of that one
  };
  std::vector<Loaded> take_loaded();

  // False: kMaxUnsavedBytes wait.
  bool has_capacity() const;
  // Pages with their bytes, in sequence.
  void save(std::vector<PageName> pages, Buffer bytes);

  struct Counters {
    uint64_t saved_pages = 0, failed_pages = 0, folder_bytes = 0;
  };
  Counters counters() const;

 private:
  struct Load {
    uint64_t ticket = 0;
    std::vector<PageName> pages;
    std::size_t page_bytes = 0;
  };
  struct Save {
    PageName page;
    SharedBytes bytes;
  };
  void run();
  Loaded read(const Load& load);
  void write(const Save& save);

  const std::unique_ptr<PageFolder> folder_;
  int64_t warned_ms_ = 0;     // the thread's
  mutable std::mutex mutex_;  // guards what follows but the thread
  std::condition_variable changed_;
  std::deque<Load> loads_;
  std::deque<Save> saves_;
  std::size_t unsaved_bytes_ = 0;
  std::vector<Loaded> loaded_;
  Counters counters_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace millrace::kv_disk
