// What a file has of the responses of an earlier process becomes those of a store.
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/response_file.h"
#include "api/response_store.h"
#include "base/log.h"
#include "base/ordered_json.h"

namespace millrace::api {
namespace {

// Nothing computes it any more.
std::string failed_body(const std::string& body) {
  auto out = parse_ordered_json(body);
  if (!out.is_object()) return body;
  out["status"] = "failed";
  out["error"] = {{"code", "server_error"}, {"message", "the server ended while it generated this response"}};
  return out.dump();
}

}  // namespace

Status ResponseStore::keep_in(std::unique_ptr<ResponseFile> file, int64_t now_s) {
  const std::lock_guard lock(mutex_);
  std::map<uint64_t, StoredResponsePtr> all;
  std::vector<uint64_t> torn, replaced;
  RETURN_IF_ERROR(file->load([&](ResponseFile::Row&& row) {
    next_number_ = row.number + 1;
    const auto before = all.find(row.before);
    if (row.before != 0 && before == all.end()) return torn.push_back(row.number);  // a half of a conversation
    const bool ran = row.background == Background::kRunning;
    const StoredResponsePtr response = all[row.number] =
        make(row.number, std::move(row.id), ran ? failed_body(row.body) : std::move(row.body), std::move(row.input),
             row.before != 0 ? before->second : nullptr, ran ? Background::kEnded : row.background);
    if (!row.listed) return;
    if (const auto known = entries_.find(response->id); known != entries_.end()) {
      replaced.push_back(known->second.response->number);
      drop(known);
    }
    list(response, std::move(row.items), row.expires_at);
  }));
  file_ = std::move(file);
  for (const uint64_t number : torn) file_->drop(number);
  for (const uint64_t number : replaced) file_->drop(number);
  if (!torn.empty())
    LOG_WARNING("{} stored responses go on from some that were not kept; they are forgotten", torn.size());
  all.clear();
  drop_excess(now_s);
  return ok_status();
}

}  // namespace millrace::api
