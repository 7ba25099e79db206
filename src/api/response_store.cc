#include "api/response_store.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "api/response_file.h"
#include "base/log.h"

namespace millrace::api {
namespace {

std::size_t stored_bytes(const StoredResponse& response) {
  return sizeof(response) + response.id.size() + response.body.size() + response.input.size();
}

}  // namespace

StoredResponse::~StoredResponse() {
  if (counted) counted->total.fetch_sub(stored_bytes(*this), std::memory_order_relaxed);
}

std::string_view text_of(Gone gone) {
  switch (gone) {
    case Gone::kExpired:
      return "it expired; answers are kept as long as --response-store-ttl-s allows";
    case Gone::kReplaced:
      return "newer ones took its place; answers are kept within --response-store-mib";
    case Gone::kDeleted:
      return "it was deleted";
    case Gone::kUnknown:
      break;
  }
  return "it was not stored by this server, or is gone for long";
}

ResponseStore::ResponseStore() : counted_(std::make_shared<StoredBytes>()) {}

ResponseStore::~ResponseStore() = default;

std::string ResponseStore::make_id() {
  std::random_device system;
  return fmt::format("resp_{:08x}{:08x}{:08x}{:08x}", system(), system(), system(), system());
}

void ResponseStore::set_limits(std::size_t bytes, int64_t seconds) {
  max_bytes_ = bytes;
  seconds_ = seconds;
}

StoredResponsePtr ResponseStore::make(uint64_t number, std::string id, std::string body, std::string input,
                                      StoredResponsePtr before, Background background) const {
  auto response = std::make_shared<StoredResponse>();
  response->number = number;
  response->id = std::move(id);
  response->body = std::move(body);
  response->input = std::move(input);
  response->conversation_bytes = stored_bytes(*response) + (before ? before->conversation_bytes : 0);
  response->turn = before ? before->turn + 1 : 1;
  response->background = background;
  response->before = std::move(before);
  response->counted = counted_;
  counted_->total.fetch_add(stored_bytes(*response), std::memory_order_relaxed);
  return response;
}

void ResponseStore::add(std::string id, std::string body, std::string input, StoredResponsePtr before,
                        const std::vector<std::string>& items, int64_t now_s, Background background) {
  if (!enabled()) return;
  StoredResponsePtr response =
      make(next_number_++, std::move(id), std::move(body), std::move(input), std::move(before), background);
  const std::lock_guard lock(mutex_);
  const auto gone = gone_.find(response->id);
  if (background == Background::kEnded && gone != gone_.end() && gone->second == Gone::kDeleted) return;
  keep(std::move(response), items, now_s);
}

bool ResponseStore::end_running(std::string_view id, std::string body, int64_t now_s) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second.response->background != Background::kRunning) return false;
  const StoredResponse& running = *found->second.response;
  keep(make(next_number_++, running.id, std::move(body), running.input, running.before, Background::kEnded), {}, now_s);
  return true;
}

void ResponseStore::keep(StoredResponsePtr response, const std::vector<std::string>& items, int64_t now_s) {
  const std::string id = response->id;
  if (const auto known = entries_.find(id); known != entries_.end()) drop(known);
  gone_.erase(id);
  if (file_) {  // a copy: what the file has still to write would count as held
    file_->put({.number = response->number,
                .id = id,
                .body = response->body,
                .input = response->input,
                .items = items,
                .before = response->before ? response->before->number : 0,
                .background = response->background,
                .expires_at = now_s + seconds_});
  }
  list(std::move(response), items, now_s + seconds_);
  drop_excess(now_s);
}

void ResponseStore::list(StoredResponsePtr response, std::vector<std::string> items, int64_t expires_at) {
  CHECK(!entries_.contains(response->id));  // keep() has dropped the one before it
  oldest_first_.emplace(response->number, response->id);
  for (const std::string& item : items) by_item_.insert_or_assign(item, response->id);
  std::string id = response->id;
  entries_.emplace(std::move(id), Entry{std::move(response), std::move(items), expires_at});
}

void ResponseStore::drop(Entries::iterator entry) {
  for (const std::string& item : entry->second.items) {
    const auto found = by_item_.find(item);
    if (found != by_item_.end() && found->second == entry->first) by_item_.erase(found);
  }
  CHECK(oldest_first_.erase(entry->second.response->number) == 1);
  if (file_) file_->drop(entry->second.response->number);
  entries_.erase(entry);
}

void ResponseStore::drop_as(Entries::iterator entry, Gone gone) {
  CHECK(gone != Gone::kUnknown);  // it would be no reason
  gone_.insert_or_assign(entry->first, gone);
  gone_oldest_first_.push_back(entry->first);
  drop(entry);
  if (gone_oldest_first_.size() <= kMaxGoneResponses) return;
  gone_.erase(gone_oldest_first_.front());
  gone_oldest_first_.pop_front();
}

// An entry that a later one goes on from frees its bytes with that one alone, so more of them may have to go.
void ResponseStore::drop_excess(int64_t now_s) {
  while (!oldest_first_.empty()) {
    const auto oldest = entries_.find(oldest_first_.begin()->second);
    CHECK(oldest != entries_.end());
    const bool full = entries_.size() > kMaxStoredResponses || by_item_.size() > kMaxStoredItems ||
                      counted_->total.load(std::memory_order_relaxed) > max_bytes_;
    const bool expired = oldest->second.expires_at <= now_s;
    if (!full && !expired) return;
    drop_as(oldest, expired ? Gone::kExpired : Gone::kReplaced);
  }
}

StoredResponsePtr ResponseStore::find(std::string_view id, int64_t now_s) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() || found->second.expires_at <= now_s ? nullptr : found->second.response;
}

StoredResponsePtr ResponseStore::find_item(std::string_view item, int64_t now_s) const {
  const std::lock_guard lock(mutex_);
  const auto id = by_item_.find(item);
  if (id == by_item_.end()) return nullptr;
  const auto found = entries_.find(id->second);
  return found == entries_.end() || found->second.expires_at <= now_s ? nullptr : found->second.response;
}

bool ResponseStore::forget(std::string_view id, int64_t now_s) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  const bool known = found->second.expires_at > now_s;
  drop_as(found, known ? Gone::kDeleted : Gone::kExpired);
  return known;
}

Gone ResponseStore::why_gone(std::string_view id, int64_t now_s) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found != entries_.end() && found->second.expires_at <= now_s) return Gone::kExpired;
  const auto gone = gone_.find(id);
  return gone == gone_.end() ? Gone::kUnknown : gone->second;
}

std::size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t ResponseStore::bytes() const { return counted_->total.load(std::memory_order_relaxed); }

}  // namespace millrace::api
