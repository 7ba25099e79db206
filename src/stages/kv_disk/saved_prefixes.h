// SavedPrefixes: prompts whose KV outlives the process. The pages of a prompt that a second request begins with are
// saved on disk, in the background; a request whose cache lacks pages that are there waits, before the scheduler knows
// it, until they are in the cache, and then begins as every request does. A state machine without clock, sockets or
// threads.
//
//   begin() -> read -> written into the cache ... -> take_ready()
//          \-> used for the second time -> computed -> copied -> saved
//
// A page is found by a digest of all tokens up to its end, after the extra key and the format of pages (model, weights,
// page size, KV dtype, instruction set); its own tokens are compared as well. So what is on disk is the bits that this
// server would compute. What fails costs time alone: the request computes the rest.
//
// Owner: the worker `generate`. Thread safety: the worker's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "scheduler/page_transfers.h"
#include "stages/kv_disk/page_io.h"
#include "stages/kv_disk/seen_pages.h"
#include "wire/messages.h"

namespace millrace::kv_disk {

class SavedPrefixes {
 public:
  // Of the pages now; an error: nothing is saved or restored meanwhile.
  using Format = std::function<Result<wire::KvFormat>()>;

  // `pages` outlives it.
  SavedPrefixes(PageTransfers& pages, Format format, std::unique_ptr<PageIo> io);

  // A request with this prompt is about to begin. True: it waits, and take_ready() will name it.
  bool begin(ReqId request, const std::vector<int32_t>& prompt, const std::string& extra_key, int64_t now_ms);
  // It waits no more: it was aborted, or its time is over.
  void cancel(ReqId request);
  // False: the write is another's.
  bool on_written(const PageTransfers::Done& done, int64_t now_ms);
  // After each step of the scheduler.
  void step(int64_t now_ms);
  std::vector<ReqId> take_ready() { return std::exchange(ready_, {}); }

  // Something is open: call again soon.
  bool waits() const { return !restores_.empty() || !saves_.empty(); }
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  struct Run {
    int32_t first = 0;  // page
    int32_t pages = 0;
    SharedBytes bytes;
  };
  struct Restore {
    std::vector<ReqId> waiting;
    TransferPrefix prefix;        // up to `end`
    std::vector<PageName> names;  // of all its pages
    std::size_t page_bytes = 0;
    int32_t next = 0, end = 0;   // pages: to read next, and behind the last
    std::deque<uint64_t> loads;  // tickets, the oldest first
    int32_t loaded_from = 0;     // the first page of the oldest
    std::deque<Run> read;        // not written
    std::optional<uint64_t> writing;
    int32_t writing_pages = 0, written = 0;
    int64_t begun_ms = 0, progress_ms = 0;
  };
  struct Save {
    TransferPrefix prefix;
    std::vector<PageName> names;
    std::size_t page_bytes = 0;
    int32_t next = 0, end = 0;
    uint64_t seen_changes = 0;  // of the cache
    int32_t cached = 0;
    int64_t since_ms = 0;
  };
  using Restores = std::list<Restore>;

  std::vector<PageName> names_of(const std::vector<int32_t>& prompt, const std::string& extra_key, int32_t pages,
                                 const wire::KvFormat& format) const;
  void note_use(const std::vector<PageName>& names, const TransferPrefix& prefix, std::size_t page_bytes,
                int64_t now_ms);
  bool join(ReqId request, const PageName& last, const CacheNamespace& space);
  void read_more(Restore& restore);
  void on_loaded(PageIo::Loaded loaded, int64_t now_ms);
  Status write_next(Restore& restore);
  void end(Restores::iterator restore, int64_t now_ms);
  void cancel_loads(Restore& restore);
  bool advance(Save& save, std::size_t& budget);
  bool save_run(Save& save, std::size_t& budget);

  PageTransfers& pages_;
  const Format format_;
  const std::unique_ptr<PageIo> io_;
  SeenPages seen_;
  SeenPages on_disk_;         // saved, or found there, since
  int64_t refreshed_ms_ = 0;  // this time
  Restores restores_;
  std::list<Save> saves_;
  std::vector<ReqId> ready_;
  uint64_t next_ticket_;
  uint64_t restored_pages_ = 0, restored_tokens_ = 0, restores_ended_ = 0, short_restores_ = 0, dropped_saves_ = 0;
  int64_t waited_ms_ = 0;
};

}  // namespace millrace::kv_disk
