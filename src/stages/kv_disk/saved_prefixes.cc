#include "stages/kv_disk/saved_prefixes.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "stages/kv_disk/limits.h"

namespace millrace::kv_disk {
namespace {

// Tickets of writes are of one number space with those of transfers between servers, which count from 1.
constexpr uint64_t kFirstTicket = uint64_t{1} << 63;

std::span<const int32_t> page_of(const std::vector<int32_t>& tokens, int32_t page, int32_t page_size) {
  return std::span(tokens).subspan(static_cast<std::size_t>(page) * static_cast<std::size_t>(page_size),
                                   static_cast<std::size_t>(page_size));
}

int32_t run_pages(std::size_t page_bytes, int32_t left) {
  return std::min(left, std::max(1, static_cast<int32_t>(kRunBytes / page_bytes)));
}

}  // namespace

SavedPrefixes::SavedPrefixes(PageTransfers& pages, Format format, std::unique_ptr<PageIo> io)
    : pages_(pages), format_(std::move(format)), io_(std::move(io)), next_ticket_(kFirstTicket) {}

bool SavedPrefixes::begin(ReqId request, const std::vector<int32_t>& prompt, const std::string& extra_key,
                          int64_t now_ms) {
  const auto format = format_();
  if (!pages_.supported().ok() || !format.ok()) return false;
  const int32_t page = format->page_size;
  const int32_t end = (static_cast<int32_t>(prompt.size()) - 1) / page;  // one token is left to compute
  if (end * page < kMinRestoredTokens) return false;
  std::vector<PageName> names = names_of(prompt, extra_key, end, *format);
  TransferPrefix prefix{pages_.space_of(extra_key), {prompt.begin(), prompt.begin() + int64_t{end} * page}};
  const auto page_bytes = static_cast<std::size_t>(format->page_bytes);
  note_use(names, prefix, page_bytes, now_ms);
  const int32_t cached = pages_.cached_pages(prefix);
  int32_t found = cached;
  while (found < end && io_->contains(names[static_cast<std::size_t>(found)].digest)) ++found;
  if ((found - cached) * page < kMinRestoredTokens) return false;
  if (join(request, names[static_cast<std::size_t>(found) - 1], prefix.space)) return true;
  if (restores_.size() >= kMaxRestores) return false;
  names.resize(static_cast<std::size_t>(found));
  prefix.tokens.resize(static_cast<std::size_t>(found) * static_cast<std::size_t>(page));
  Restore& restore = restores_.emplace_back();
  restore.waiting = {request};
  restore.prefix = std::move(prefix);
  restore.names = std::move(names);
  restore.page_bytes = page_bytes;
  restore.next = restore.loaded_from = cached;
  restore.end = found;
  restore.begun_ms = restore.progress_ms = now_ms;
  read_more(restore);
  return true;
}

// The digest of a page is that of all tokens up to its end, behind what the pages are of.
std::vector<PageName> SavedPrefixes::names_of(const std::vector<int32_t>& prompt, const std::string& extra_key,
                                              int32_t pages, const wire::KvFormat& format) const {
  BlockDigest parent =
      text_digest(fmt::format("{} {} {} {} {} {} {}", format.model_hash, format.weights_checksum, format.page_size,
                              format.page_bytes, format.kv_dtype, format.isa, extra_key));
  std::vector<PageName> names(static_cast<std::size_t>(pages));
  for (int32_t i = 0; i < pages; ++i) {
    const auto tokens = page_of(prompt, i, format.page_size);
    names[static_cast<std::size_t>(i)] = {chain_digest(&parent, tokens), parent, {tokens.begin(), tokens.end()}};
    parent = names[static_cast<std::size_t>(i)].digest;
  }
  return names;
}

// The pages that a request has begun with before are worth a place on disk.
void SavedPrefixes::note_use(const std::vector<PageName>& names, const TransferPrefix& prefix, std::size_t page_bytes,
                             int64_t now_ms) {
  int32_t again = 0;  // pages: where one was used before, so were those before it
  for (const PageName& name : names) again += seen_.use(name.digest);
  if (now_ms - refreshed_ms_ >= kRefreshMs) {
    refreshed_ms_ = now_ms;
    on_disk_.clear();
  }
  int32_t first = 0;
  while (first < again && on_disk_.contains(names[static_cast<std::size_t>(first)].digest)) ++first;
  if (first >= again) return;
  const BlockDigest& last = names[static_cast<std::size_t>(again) - 1].digest;
  for (const Save& save : saves_) {
    if (save.names.back().digest == last) return;
  }
  if (saves_.size() >= kMaxSaves) {
    ++dropped_saves_;
    return;
  }
  Save& save = saves_.emplace_back();
  const std::size_t page_size = names.front().tokens.size();
  save.names.assign(names.begin(), names.begin() + again);
  save.prefix = {prefix.space,
                 {prefix.tokens.begin(), prefix.tokens.begin() + again * static_cast<std::ptrdiff_t>(page_size)}};
  save.page_bytes = page_bytes;
  save.next = first;
  save.end = again;
  save.since_ms = now_ms;
}

bool SavedPrefixes::join(ReqId request, const PageName& last, const CacheNamespace& space) {
  for (Restore& restore : restores_) {
    if (restore.names.back().digest != last.digest || restore.prefix.space != space) continue;
    restore.waiting.push_back(request);
    return true;
  }
  return false;
}

void SavedPrefixes::cancel(ReqId request) {
  for (Restore& restore : restores_) std::erase(restore.waiting, request);
  std::erase(ready_, request);
}

void SavedPrefixes::read_more(Restore& restore) {
  while (restore.next < restore.end &&
         restore.loads.size() + restore.read.size() < static_cast<std::size_t>(kMaxRuns)) {
    const int32_t count = run_pages(restore.page_bytes, restore.end - restore.next);
    const auto from = restore.names.begin() + restore.next;
    restore.loads.push_back(next_ticket_);
    io_->load(next_ticket_++, {from, from + count}, restore.page_bytes);
    restore.next += count;
  }
}

void SavedPrefixes::on_loaded(PageIo::Loaded loaded, int64_t now_ms) {
  const auto it = std::find_if(restores_.begin(), restores_.end(), [&](const Restore& restore) {
    return !restore.loads.empty() && restore.loads.front() == loaded.ticket;
  });
  if (it == restores_.end()) return;  // it has ended
  it->loads.pop_front();
  it->progress_ms = now_ms;
  if (loaded.pages > 0) it->read.push_back({it->loaded_from, loaded.pages, std::move(loaded.bytes)});
  it->loaded_from += loaded.pages;
  if (loaded.status.ok()) return;
  // What follows is of no use.
  if (loaded.status.code() != StatusCode::kNotFound) LOG_WARNING("KV on disk: {}", loaded.status.to_string());
  it->end = it->next = it->loaded_from;
  cancel_loads(*it);
}

// One write at a time: what lies below it must be cached.
Status SavedPrefixes::write_next(Restore& restore) {
  if (restore.writing || restore.read.empty()) return ok_status();
  Run& run = restore.read.front();
  const Status status = pages_.write(next_ticket_, restore.prefix, run.first, run.pages, {run.bytes});
  if (status.code() == StatusCode::kResourceExhausted) return ok_status();  // at the next step
  RETURN_IF_ERROR(status);
  restore.writing = next_ticket_++;
  restore.writing_pages = run.pages;
  restore.read.pop_front();
  return ok_status();
}

bool SavedPrefixes::on_written(const PageTransfers::Done& done, int64_t now_ms) {
  if (done.ticket < kFirstTicket) return false;
  const auto it = std::find_if(restores_.begin(), restores_.end(),
                               [&](const Restore& restore) { return restore.writing == done.ticket; });
  if (it == restores_.end()) return true;
  it->writing.reset();
  it->progress_ms = now_ms;
  if (!done.status.ok()) {
    LOG_WARNING("KV on disk: pages were not restored, and are computed: {}", done.status.to_string());
    end(it, now_ms);
    return true;
  }
  it->written += it->writing_pages;
  return true;
}

void SavedPrefixes::step(int64_t now_ms) {
  for (PageIo::Loaded& loaded : io_->take_loaded()) on_loaded(std::move(loaded), now_ms);
  for (auto it = restores_.begin(); it != restores_.end();) {
    const auto next = std::next(it);
    Restore& restore = *it;
    const Status status = write_next(restore);
    if (!status.ok()) LOG_WARNING("KV on disk: pages are computed instead: {}", status.to_string());
    read_more(restore);
    const bool idle = restore.loads.empty() && restore.read.empty() && !restore.writing;
    const bool over = restore.waiting.empty() || now_ms - restore.progress_ms >= kRestoreStallMs;
    if (!status.ok() || over || (idle && restore.next == restore.end)) end(it, now_ms);
    it = next;
  }
  std::size_t budget = kSavedBytesPerStep;
  for (auto it = saves_.begin(); it != saves_.end();) {
    const auto next = std::next(it);
    const bool over = now_ms - it->since_ms >= kSaveTimeoutMs;
    if (over) ++dropped_saves_;
    if (over || !advance(*it, budget)) saves_.erase(it);
    it = next;
  }
}

void SavedPrefixes::end(Restores::iterator restore, int64_t now_ms) {
  const auto page_size = restore->names.front().tokens.size();
  ++restores_ended_;
  short_restores_ += std::cmp_not_equal(restore->loaded_from, restore->names.size());
  restored_pages_ += static_cast<uint64_t>(restore->written);
  restored_tokens_ += static_cast<uint64_t>(restore->written) * page_size;
  waited_ms_ += now_ms - restore->begun_ms;
  for (const ReqId request : restore->waiting) ready_.push_back(request);
  cancel_loads(*restore);
  restores_.erase(restore);
}

// Else those that wait would be read before the loads of restores that have requests.
void SavedPrefixes::cancel_loads(Restore& restore) {
  for (const uint64_t ticket : std::exchange(restore.loads, {})) io_->cancel(ticket);
}

// Copies what is cached by now. False: there is nothing more to do.
bool SavedPrefixes::advance(Save& save, std::size_t& budget) {
  if (save.prefix.space.weight_version != pages_.space_of("").weight_version) return false;
  if (const uint64_t changes = pages_.changes(); std::exchange(save.seen_changes, changes) != changes) {
    save.cached = pages_.cached_pages(save.prefix);
  }
  while (budget > 0 && save.next < std::min(save.cached, save.end) && io_->has_capacity()) {
    const BlockDigest& digest = save.names[static_cast<std::size_t>(save.next)].digest;
    if (io_->mark_used(digest)) {
      on_disk_.use(digest);
      budget -= std::min(budget, kMarkCost);
      ++save.next;
      continue;
    }
    if (!save_run(save, budget)) break;
  }
  return save.next < save.end;
}

// False: later.
bool SavedPrefixes::save_run(Save& save, std::size_t& budget) {
  const int32_t count = run_pages(save.page_bytes, std::min(save.cached, save.end) - save.next);
  Buffer bytes(static_cast<std::size_t>(count) * save.page_bytes);
  const Status status = pages_.read(save.prefix, save.next, count, {bytes.data(), bytes.size_bytes()});
  if (!status.ok()) return false;  // evicted meanwhile, or on its way back from the host tier
  const auto from = save.names.begin() + save.next;
  budget -= std::min(budget, bytes.size_bytes());
  for (auto page = from; page != from + count; ++page) on_disk_.use(page->digest);
  io_->save({from, from + count}, std::move(bytes));
  save.next += count;
  return true;
}

void SavedPrefixes::describe(std::vector<wire::Metric>& metrics) const {
  const PageIo::Counters io = io_->counters();
  const auto add = [&](const char* name, auto value) { metrics.push_back({name, static_cast<double>(value)}); };
  add("kv_disk_bytes", io.folder_bytes);
  add("kv_disk_saved_pages_total", io.saved_pages);
  add("kv_disk_failed_pages_total", io.failed_pages);
  add("kv_disk_dropped_prefixes_total", dropped_saves_);
  add("kv_disk_restored_pages_total", restored_pages_);
  add("kv_disk_restored_tokens_total", restored_tokens_);
  add("kv_disk_restores_total", restores_ended_);
  add("kv_disk_short_restores_total", short_restores_);
  metrics.push_back({"kv_disk_wait_seconds_total", static_cast<double>(waited_ms_) / 1000});
}

}  // namespace millrace::kv_disk
