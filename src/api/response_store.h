// ResponseStore: the answers of /v1/responses that clients asked to keep, so that they may be read again, and a later
// request may go on from one by its id. In memory; what a ResponseFile has of them outlives the process.
//
// A response that goes on from another one holds it: forgetting the earlier one ends its own id, not the conversation.
// The oldest ones go where newer ones need the space; a response that is over the limits by itself is not kept.
//
// Owned by ApiState. Thread safety: all functions from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::api {

inline constexpr std::size_t kMaxStoredResponses = 4096;
inline constexpr std::size_t kMaxStoredItems = 65'536;                      // of all of them, that have ids
inline constexpr std::size_t kMaxConversationBytes = std::size_t{4} << 20;  // of one, with those that it goes on from
inline constexpr int kMaxConversationTurns = 1024;
inline constexpr std::size_t kMaxGoneResponses = 4096;                     // of which the store knows why they are gone
inline constexpr std::size_t kDefaultStoredBytes = std::size_t{64} << 20;  // --response-store-mib
inline constexpr int64_t kDefaultStoredSeconds = 3600;                     // --response-store-ttl-s

// The bytes of responses that anything holds.
struct StoredBytes {
  std::atomic<std::size_t> total{0};
};

// Whether a response was asked for in the background, and where it is then.
enum class Background : uint8_t { kNo, kRunning, kEnded };

// One response, and what it answers. Immutable.
struct StoredResponse {
  uint64_t number = 0;  // in the sequence in which they were made
  std::string id;
  std::string body;   // as the client got it
  std::string input;  // a JSON array of items, each with an id, without those of earlier responses
  std::shared_ptr<const StoredResponse> before;
  std::size_t conversation_bytes = 0;  // with those before it
  int turn = 1;                        // of its conversation
  Background background = Background::kNo;
  std::shared_ptr<StoredBytes> counted;

  ~StoredResponse();
};
using StoredResponsePtr = std::shared_ptr<const StoredResponse>;

// Why a response is not in the store.
enum class Gone : uint8_t {
  kUnknown,   // never stored, or gone too long ago
  kExpired,   // --response-store-ttl-s
  kReplaced,  // by newer ones: --response-store-mib, kMaxStoredResponses, kMaxStoredItems
  kDeleted,   // by a client
};
// "it expired; ...", for a message.
std::string_view text_of(Gone gone);

class ResponseFile;

class ResponseStore {
 public:
  ResponseStore();
  ~ResponseStore();
  // "resp_" and 32 hex digits of the system's random bits, so that no client finds the responses of another one.
  static std::string make_id();

  // 0 bytes: nothing is kept. Before the server starts.
  void set_limits(std::size_t bytes, int64_t seconds);
  // The file's responses are in the store from now on, as far as the limits allow, and the file follows the store. One
  // that ran in the background when its server ended has failed. Before the server starts, after set_limits().
  Status keep_in(std::unique_ptr<ResponseFile> file, int64_t now_s);
  bool enabled() const { return max_bytes_ > 0; }

  // Keeps it, in the place of an earlier one of its id. `items`: the ids of its output's items. Of the background, the
  // end of one that was deleted while it ran is not kept.
  void add(std::string id, std::string body, std::string input, StoredResponsePtr before,
           const std::vector<std::string>& items, int64_t now_s, Background background = Background::kNo);
  // Puts an end to one that runs in the background, with this body. False: it does not run.
  bool end_running(std::string_view id, std::string body, int64_t now_s);
  // nullptr: unknown, expired, forgotten, or replaced by newer ones.
  StoredResponsePtr find(std::string_view id, int64_t now_s) const;
  // The response with an item of this id in its output.
  StoredResponsePtr find_item(std::string_view item, int64_t now_s) const;
  // Of an id for which find() has nothing.
  Gone why_gone(std::string_view id, int64_t now_s) const;
  // Whether it was there.
  bool forget(std::string_view id, int64_t now_s);

  std::size_t size() const;
  std::size_t bytes() const;

 private:
  struct Entry {
    StoredResponsePtr response;
    std::vector<std::string> items;
    int64_t expires_at = 0;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  StoredResponsePtr make(uint64_t number, std::string id, std::string body, std::string input, StoredResponsePtr before,
                         Background background) const;
  void keep(StoredResponsePtr response, const std::vector<std::string>& items, int64_t now_s);  // with the lock held
  void list(StoredResponsePtr response, std::vector<std::string> items, int64_t expires_at);
  void drop(Entries::iterator entry);  // with the lock held, as the next ones
  void drop_as(Entries::iterator entry, Gone gone);
  void drop_excess(int64_t now_s);

  const std::shared_ptr<StoredBytes> counted_;
  std::size_t max_bytes_ = kDefaultStoredBytes;
  int64_t seconds_ = kDefaultStoredSeconds;

  std::atomic<uint64_t> next_number_ = 1;

  mutable std::mutex mutex_;  // guards what follows
  Entries entries_;
  std::map<std::string, std::string, std::less<>> by_item_;  // to the id of its response
  std::map<uint64_t, std::string> oldest_first_;             // ids by number
  std::map<std::string, Gone, std::less<>> gone_;
  std::deque<std::string> gone_oldest_first_;  // may name one that came again
  std::unique_ptr<ResponseFile> file_;         // null: nothing outlives the process
};

}  // namespace millrace::api
