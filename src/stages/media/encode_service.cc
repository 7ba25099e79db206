#include "stages/media/encode_service.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "base/clock.h"
#include "base/log.h"
#include "stages/stage.h"

namespace millrace {
namespace {

// 4 MiB: a quarter of what one message may have.
constexpr int64_t kPartValues = int64_t{wire::kMaxFeaturesBytes} / 4 / static_cast<int64_t>(sizeof(float));

wire::FeaturesPart part_of(uint64_t job, const MediaFeatures& features, int64_t first) {
  const auto all = static_cast<int64_t>(features.values->size());
  const int64_t count = std::min(kPartValues, all - first);
  wire::FeaturesPart part{
      .job = job, .rows = features.rows, .sets = features.sets, .hidden_size = features.hidden_size, .first = first};
  part.bytes.bytes.assign(reinterpret_cast<const char*>(features.values->data() + first),
                          static_cast<std::size_t>(count) * sizeof(float));
  part.checksum = wire::features_checksum(part);
  return part;
}

}  // namespace

EncodeService::EncodeService(std::unique_ptr<MediaModel> model, transfer::TransferLinks links, wire::EncoderFacts facts)
    : encoder_(std::move(model)), links_(std::move(links)), facts_(std::move(facts)) {}

void EncodeService::receive(int timeout_ms) {
  auto message = links_.inbox->receive(timeout_ms);
  while (message) {
    if (auto* wanted = std::get_if<wire::EncodeMedia>(&*message)) on(std::move(*wanted));
    if (const auto* end = std::get_if<wire::EncodeEnd>(&*message)) on(*end);
    message = links_.inbox->receive(0);
  }
}

void EncodeService::on(wire::EncodeMedia&& wanted) {
  if (ids_.contains({wanted.reply_to, wanted.job})) return;  // it came twice
  // Where there is no connection yet, the table of peers is late: the sender's message may come before its entry.
  if (connect(wanted.reply_to)) return begin(std::move(wanted));
  if (early_.size() < kMaxEarlyJobs) early_.push_back({monotonic_ms() + kEarlyJobMs, std::move(wanted)});
}

bool EncodeService::connect(const std::string& endpoint) {
  if (senders_.contains(endpoint)) return true;
  auto outbox = links_.connect(endpoint);
  if (outbox.ok()) senders_[endpoint].outbox = std::move(*outbox);
  return outbox.ok();
}

void EncodeService::begin_early(int64_t now_ms) {
  for (std::deque<Early> early = std::exchange(early_, {}); Early & one : early) {
    if (connect(one.wanted.reply_to)) {
      begin(std::move(one.wanted));
    } else if (now_ms < one.until_ms) {
      early_.push_back(std::move(one));
    } else {
      LOG_WARNING("{} is not encoded: its sender is no replica of the stage that generates", one.wanted.media.field);
    }
  }
}

void EncodeService::begin(wire::EncodeMedia wanted) {
  // Jobs are numbered by each sender, so a key has its endpoint too.
  const Key key{wanted.reply_to, wanted.job};
  if (Status status = check(wanted); !status.ok()) return fail(key, status);
  if (auto span = links_.spans.begin(wanted.traceparent)) {
    span->attributes.emplace_back("millrace.media.bytes", static_cast<int64_t>(wanted.media.bytes.bytes.size()));
    span->attributes.emplace_back("millrace.media.rows", int64_t{wanted.media.rows});
    spans_.insert_or_assign(key, std::move(*span));
  }
  const ReqId id{++last_id_};
  // Alone, as if it were a prompt.
  std::vector<wire::PromptMedia> media = {std::move(wanted.media)};
  media[0].begin = 0;
  const int32_t rows = media[0].rows;
  if (Status status = check_prompt_media(media, rows); !status.ok()) return fail(key, status);
  auto encoded = encoder_.encode(id, media, rows);
  // At once where its features are cached; else step() finds it among the finished ones.
  if (encoded) return finish(key, *encoded);
  jobs_[id] = key;
  ids_[key] = id;
}

Status EncodeService::check(const wire::EncodeMedia& wanted) const {
  // Features of other weights, or of another arithmetic, would change the answer without an error.
  if (wanted.facts != facts_) {
    return error(StatusCode::kConflict,
                 "the encoder has the model {:#x} with {}, and the stage that asks {:#x} with {}; "
                 "wanted the same",
                 facts_.model_hash, facts_.isa, wanted.facts.model_hash, wanted.facts.isa);
  }
  if (jobs_.size() < kMaxEncodeJobs) return ok_status();
  return error(StatusCode::kResourceExhausted, "{} pictures and audios wait for the encoder; wanted at most so many",
               kMaxEncodeJobs);
}

void EncodeService::on(const wire::EncodeEnd& end) {
  const auto found = ids_.extract({end.reply_to, end.job});
  if (!found.empty()) {
    encoder_.drop(found.mapped());
    jobs_.erase(found.mapped());
  }
  // Also of a job that was encoded already: parts that were not sent yet are dropped.
  end_span({end.reply_to, end.job}, 0, Status(StatusCode::kCancelled, "no request waits for it any more"));
  const auto sender = senders_.find(end.reply_to);
  if (sender == senders_.end()) return;
  std::erase_if(sender->second.features, [&](const Sending& one) { return one.job == end.job; });
}

// A job without one is not traced.
void EncodeService::end_span(const Key& key, int64_t bytes, const Status& why) {
  const auto found = spans_.extract(key);
  if (found.empty()) return;
  found.mapped().attributes.emplace_back("millrace.media.feature_bytes", bytes);
  links_.spans.end(std::move(found.mapped()), why);
}

void EncodeService::fail(const Key& key, const Status& status) {
  end_span(key, 0, status);
  wire::EncodeEnd end{.job = key.second, .failure = wire::Failure{status.code(), std::string(status.message())}};
  const auto sender = senders_.find(key.first);
  if (sender != senders_.end()) sender->second.ends.push_back(std::move(end));
}

void EncodeService::finish(const Key& key, const MediaEncoder::Encoded& encoded) {
  if (!encoded.ok()) return fail(key, encoded.status());
  const MediaFeatures& features = (*encoded)->spans[0].features;
  end_span(key, static_cast<int64_t>(features.values->size() * sizeof(float)), ok_status());
  const auto sender = senders_.find(key.first);
  if (sender != senders_.end()) sender->second.features.push_back({key.second, features});
}

bool EncodeService::step(int64_t now_ms) {
  for (auto& [id, encoded] : encoder_.take_finished()) {
    const auto job = jobs_.extract(id);
    if (job.empty()) continue;  // its sender has ended it
    ids_.erase(job.mapped());
    finish(job.mapped(), encoded);
  }
  drop_lost_senders();
  begin_early(now_ms);
  bool waits = !jobs_.empty() || !early_.empty();
  for (auto& [endpoint, sender] : senders_) waits |= send(sender);
  return waits;
}

// What its inbox cannot take now stays; true: something does.
bool EncodeService::send(Sender& sender) {
  // Failures first: they are small, and need not wait behind the features of other jobs.
  while (!sender.ends.empty()) {
    wire::Message end = sender.ends.front();
    if (!sender.outbox->send(end).ok()) return true;
    sender.ends.pop_front();
  }
  while (!sender.features.empty()) {
    Sending& one = sender.features.front();
    wire::FeaturesPart part = part_of(one.job, one.features, one.first);
    const auto count = static_cast<int64_t>(part.bytes.bytes.size() / sizeof(float));
    wire::Message message = std::move(part);
    // Counted only when it was taken; else the same part is made again in the next step.
    if (!sender.outbox->send(message).ok()) return true;
    one.first += count;
    if (one.first == static_cast<int64_t>(one.features.values->size())) sender.features.pop_front();
  }
  return false;
}

// Of a process that is gone, or was started again elsewhere.
void EncodeService::drop_lost_senders() {
  // Only when the table has changed: this runs in every step.
  if (links_.peers->version() == seen_peers_) return;
  seen_peers_ = links_.peers->version();
  const auto replicas = links_.peers->replicas();
  std::erase_if(senders_, [&](const auto& sender) {
    const bool present = std::ranges::any_of(replicas, [&](const auto& one) { return one.endpoint == sender.first; });
    if (present) return false;
    std::erase_if(jobs_, [&](const auto& job) {
      if (job.second.first != sender.first) return false;
      encoder_.drop(job.first);
      ids_.erase(job.second);
      end_span(job.second, 0, Status(StatusCode::kUnavailable, "the stage that asked is gone"));
      return true;
    });
    return true;
  });
}

}  // namespace millrace
