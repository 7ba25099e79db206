#include "stages/media/media_encoder.h"

#include <algorithm>
#include <chrono>

#include "base/trace.h"

namespace millrace {
namespace {

std::size_t bytes_of(const MediaFeatures& features) { return features.values->size() * sizeof(float); }

// Each request has names of its own for a picture that several wait for.
const std::string& field_of(const std::vector<wire::PromptMedia>& media, const std::string& digest) {
  const auto found = std::ranges::find_if(media, [&](const auto& one) { return one.digest.bytes == digest; });
  CHECK(found != media.end());
  return found->field;
}

}  // namespace

Status check_prompt_media(std::span<const wire::PromptMedia> media, int32_t rows) {
  if (media.size() > wire::kMaxPromptMedia) {
    return invalid_argument("the prompt has {} pictures and audios; wanted at most {}", media.size(),
                            wire::kMaxPromptMedia);
  }
  // In 64 bits: the numbers come from a message, and their sum may not fit 32.
  int64_t end = 0;
  for (const wire::PromptMedia& one : media) {
    const int64_t begin = one.begin, behind = begin + one.rows;
    if (one.rows < 1 || begin < end || behind > rows) {
      return invalid_argument("{} has rows [{}, {}); wanted some inside [{}, {})", one.field, begin, behind, end, rows);
    }
    if (one.grid_t < 1 || one.grid_h < 1 || one.grid_w < 1) {
      return invalid_argument("{} has a grid of {} x {} x {}; wanted at least 1 each", one.field, one.grid_t,
                              one.grid_h, one.grid_w);
    }
    if (one.digest.bytes.size() != wire::kMediaDigestBytes) {
      return invalid_argument("{} has a digest of {} bytes; wanted {}", one.field, one.digest.bytes.size(),
                              wire::kMediaDigestBytes);
    }
    end = behind;
  }
  return ok_status();
}

MediaEncoder::MediaEncoder(std::unique_ptr<MediaModel> model, std::size_t cache_bytes)
    : model_(std::move(model)), cache_(cache_bytes), thread_([this] { encode_main(); }) {}

MediaEncoder::~MediaEncoder() {
  // Before the lock: an encoding under way looks at it between its parts, and ends soon instead of holding up the join.
  ending_ = true;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::optional<MediaEncoder::Encoded> MediaEncoder::encode(ReqId id, std::vector<wire::PromptMedia>& media,
                                                          int32_t rows) {
  Waiting waiting{.rows = rows};
  waiting.features.resize(media.size());
  // First those that are known: one that is started below may push them out of the cache.
  for (std::size_t i = 0; i < media.size(); ++i) {
    if (const MediaFeatures* known = find(media[i].digest.bytes)) waiting.features[i] = *known;
  }
  Status status;
  for (std::size_t i = 0; i < media.size() && status.ok(); ++i) {
    // A picture that stands twice in a prompt counts as missing twice; settle() fills in both.
    if (waiting.features[i]) continue;
    ++waiting.missing;
    status = start(id, media[i]);
  }
  // Freed here, since the caller keeps `media`: a file lives in the job alone, and once for all requests that wait for
  // it.
  for (wire::PromptMedia& one : media) one.bytes = {};
  waiting.media = media;
  if (!status.ok()) {
    // drop() undoes what start() has done for the pictures before the refused one, and needs the entry for it.
    waiting_.insert_or_assign(id, std::move(waiting));
    drop(id);
    return status;
  }
  if (waiting.missing == 0) return Encoded(make_input(waiting));
  waiting_.insert_or_assign(id, std::move(waiting));
  return std::nullopt;
}

// One more request waits for this picture.
Status MediaEncoder::start(ReqId id, wire::PromptMedia& media) {
  const auto [it, fresh] = under_way_.try_emplace(media.digest.bytes);
  UnderWay& one = it->second;
  if (!fresh) {
    ++counters_.joined;
    // It may have been given up, and its encoding not have ended yet: from here on it is wanted again, and settle()
    // queues it anew if it has ended as cancelled.
    one.wanted->store(true);
    if (std::ranges::find(one.requests, id) == one.requests.end()) one.requests.push_back(id);
    return ok_status();
  }
  const std::size_t bytes = media.bytes.bytes.size();
  // The new entry counts: at most kMaxEncoding are under way.
  if (under_way_.size() > kMaxEncoding || under_way_bytes_ + bytes > kMaxEncodingBytes) {
    under_way_.erase(it);
    return error(StatusCode::kResourceExhausted,
                 "{} pictures and audios of {} bytes wait to be encoded; the limits are {} and {}; try again later",
                 under_way_.size(), under_way_bytes_, kMaxEncoding, kMaxEncodingBytes);
  }
  one = {{id}, std::make_shared<std::atomic<bool>>(true), bytes};
  under_way_bytes_ += bytes;
  wire::PromptMedia job = media;
  job.bytes = std::exchange(media.bytes, {});
  queue(std::move(job), one);
  return ok_status();
}

void MediaEncoder::queue(wire::PromptMedia media, const UnderWay& one) {
  {
    const std::lock_guard lock(mutex_);
    queued_.push_back({std::move(media), one.wanted});
  }
  changed_.notify_one();
}

// An encoding that no request wants ends at its next look at `wanted`; its entry stays until settle(), so that a
// request that comes meanwhile finds it and no picture is encoded twice at once.
void MediaEncoder::drop(ReqId id) {
  const auto waiting = waiting_.extract(id);
  if (waiting.empty()) return;
  for (auto& [digest, one] : under_way_) {
    std::erase(one.requests, id);
    if (one.requests.empty()) one.wanted->store(false);
  }
}

std::vector<std::pair<ReqId, MediaEncoder::Encoded>> MediaEncoder::take_finished() {
  std::vector<Finished> finished;
  {
    const std::lock_guard lock(mutex_);
    finished.swap(finished_);
  }
  std::vector<std::pair<ReqId, Encoded>> out;
  for (Finished& one : finished) settle(std::move(one), out);
  return out;
}

void MediaEncoder::settle(Finished one, std::vector<std::pair<ReqId, Encoded>>& out) {
  const std::string digest = one.media.digest.bytes;
  counters_.seconds += one.seconds;
  const auto found_under_way = under_way_.find(digest);
  const bool cancelled = one.features.status().code() == StatusCode::kCancelled;
  // It was given up, and just then the next request came for it.
  if (cancelled && !found_under_way->second.requests.empty()) {
    return queue(std::move(one.media), found_under_way->second);
  }
  // Out of the map before the requests are answered: drop() below walks over it.
  const UnderWay ended = std::move(found_under_way->second);
  under_way_.erase(found_under_way);
  under_way_bytes_ -= ended.bytes;
  if (cancelled) return;
  ++(one.features.ok() ? counters_.encoded : counters_.failed);
  if (one.features.ok()) cache_.keep(digest, *one.features, bytes_of(*one.features));
  for (const ReqId id : ended.requests) {
    const auto found = waiting_.find(id);
    // Dropped, or ended by the failure of another of its pictures.
    if (found == waiting_.end()) continue;
    Waiting& waiting = found->second;
    if (!one.features.ok()) {
      out.emplace_back(id, one.features.status().with_prefix(field_of(waiting.media, digest)));
      drop(id);
      continue;
    }
    for (std::size_t i = 0; i < waiting.media.size(); ++i) {
      if (waiting.features[i] || waiting.media[i].digest.bytes != digest) continue;
      waiting.features[i] = *one.features;
      --waiting.missing;
    }
    if (waiting.missing > 0) continue;
    out.emplace_back(id, make_input(waiting));
    waiting_.erase(found);
  }
}

std::shared_ptr<const PromptInput> MediaEncoder::make_input(Waiting& waiting) const {
  auto input = std::make_shared<PromptInput>();
  for (std::size_t i = 0; i < waiting.media.size(); ++i) {
    const wire::PromptMedia& media = waiting.media[i];
    // Called once for a request: its features move into the input. The cache has its own reference to the values.
    input->spans.push_back({media.begin, media.digest.bytes, std::move(*waiting.features[i])});
  }
  model_->set_positions(waiting.rows, waiting.media, *input);
  return input;
}

const MediaFeatures* MediaEncoder::find(const std::string& digest) {
  const MediaFeatures* known = cache_.find(digest);
  if (known != nullptr) ++counters_.found;
  return known;
}

void MediaEncoder::describe(std::vector<wire::Metric>& metrics) const {
  metrics.push_back({"media_encoded_total", static_cast<double>(counters_.encoded)});
  metrics.push_back({"media_failed_total", static_cast<double>(counters_.failed)});
  metrics.push_back({"media_cache_hits_total", static_cast<double>(counters_.found)});
  metrics.push_back({"media_joined_total", static_cast<double>(counters_.joined)});
  metrics.push_back({"media_encode_seconds_total", counters_.seconds});
  metrics.push_back({"media_cache_bytes", static_cast<double>(cache_.bytes())});
  metrics.push_back({"media_waiting_requests", static_cast<double>(waiting_.size())});
}

void MediaEncoder::encode_main() {
  using Seconds = std::chrono::duration<double>;
  trace::name_thread("encoder");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queued_.empty(); });
    if (stopping_) return;
    Job job = std::move(queued_.front());
    queued_.pop_front();
    lock.unlock();
    const auto begin = std::chrono::steady_clock::now();
    const auto keep_going = [&] { return job.wanted->load() && !ending_.load(); };
    Features features = keep_going() ? model_->encode(job.media, keep_going)
                                     : Features(Status(StatusCode::kCancelled, "no request waits for it any more"));
    const double seconds = Seconds(std::chrono::steady_clock::now() - begin).count();
    lock.lock();
    // With the file, which settle() needs to queue a cancelled one again. No event wakes the worker: it looks again
    // every kRestMs while a request waits.
    finished_.push_back({std::move(job.media), std::move(features), seconds});
  }
}

}  // namespace millrace
