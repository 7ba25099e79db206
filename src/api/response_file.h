// ResponseFile: the responses of a ResponseStore in a SQLite file, so that they outlive the process. The store in
// memory is what clients read; the file follows it, on a thread of its own: nothing that serves waits for a disk.
//
//   response (number, id, body, input, items, before, background, expires_at, listed)
//   before:  the number of the one that it goes on from; 0: none
//   listed:  0 where only later ones hold it: a client deleted it, or newer ones took its place
//
// What cannot be written is in memory all the same, and missing after a restart: each such response is named in the
// log. One that a client deleted is deleted in the file as soon as it can be. A file belongs to one process at a time:
// SQLite's lock on it is held from open() to the end.
//
// Owner: the store. Thread safety: open() and load() before the others; these from any thread. The destructor writes
// what waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "api/response_store.h"
#include "api/sqlite_database.h"
#include "base/status.h"

namespace millrace::api {

inline constexpr std::size_t kMaxUnwrittenBytes = std::size_t{32} << 20;  // that wait for the disk

class ResponseFile {
 public:
  // A new file where there is none. An error with the file, what is wrong with it and what is wanted: it is damaged,
  // another program's, read-only, or open in another process.
  static Result<std::unique_ptr<ResponseFile>> open(const std::string& path);
  ~ResponseFile();

  struct Row {
    uint64_t number = 0;
    std::string id, body, input;
    std::vector<std::string> items;
    uint64_t before = 0;
    Background background = Background::kNo;
    int64_t expires_at = 0;
    bool listed = true;
  };
  // All of them, by number.
  Status load(const std::function<void(Row&&)>& use);

  void put(Row row);
  // No client finds it any more. It goes with the last one that goes on from it.
  void drop(uint64_t number);

 private:
  using Change = std::variant<Row, uint64_t>;  // a number: to be dropped

  ResponseFile(std::string path, SqliteDatabase database);
  void write_main();
  void write(const Change& change);
  Status write_put(const Row& row);
  Status write_drop(uint64_t number);

  const std::string path_;
  SqliteDatabase database_;  // the thread's, once it runs

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Change> waiting_;  // guarded by mutex_, as the next two
  std::size_t waiting_bytes_ = 0;
  bool stopping_ = false;

  std::set<uint64_t> owed_;  // drops that failed; the thread's
  std::thread thread_;       // last: it uses everything above
};

}  // namespace millrace::api
