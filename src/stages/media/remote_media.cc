#include "stages/media/remote_media.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/xxh3.h"
#include "models/vision/mrope.h"
#include "stages/stage.h"

namespace millrace {
namespace {

constexpr int kPollMs = 20;
constexpr int kAskAgainMs = 30'000;  // what came twice begins nothing

using Replica = transfer::TransferPeers::Replica;

class RemoteMedia final : public MediaModel {
 public:
  RemoteMedia(transfer::TransferLinks links, wire::EncoderFacts facts, const ModelConfig& config)
      : links_(std::move(links)), facts_(std::move(facts)), config_(config) {}

  Result<MediaFeatures> encode(const wire::PromptMedia& media, FunctionRef<bool()> keep_going) override {
    const int64_t end_ms = monotonic_ms() + kFeaturesTimeoutMs;
    for (int tries = 0; tries < kEncoderTries; ++tries) {
      ASSIGN_OR_RETURN(const Replica replica, choose(media, keep_going));
      auto features = ask(replica, media, keep_going, end_ms);
      if (features.ok() || features.status().code() != StatusCode::kUnavailable) return features;
      connected_.clear();  // what is back may have the same endpoint
      LOG_WARNING("{}: {}; another try", media.field, features.status().message());
    }
    return error(StatusCode::kUnavailable, "the encoder was lost {} times meanwhile", kEncoderTries);
  }

  void set_positions(int32_t rows, std::span<const wire::PromptMedia> media, PromptInput& input) const override {
    set_media_positions(rows, media, config_.vision ? config_.vision->merge_size : 1, input);
  }

 private:
  // By the picture, so that all ask one. kUnavailable: none was available for kEncoderWaitMs.
  Result<Replica> choose(const wire::PromptMedia& media, FunctionRef<bool()> keep_going) {
    const int64_t end_ms = monotonic_ms() + kEncoderWaitMs;
    while (true) {
      std::vector<Replica> present = links_.peers->replicas();
      std::erase_if(present, [](const Replica& one) { return one.endpoint.empty(); });
      const std::string& digest = media.digest.bytes;
      if (!present.empty()) return present[XXH3_64bits(digest.data(), digest.size()) % present.size()];
      if (!keep_going()) return Status(StatusCode::kCancelled, "no request waits for it any more");
      if (monotonic_ms() > end_ms) {
        return error(StatusCode::kUnavailable, "the stage that encodes pictures and audio is not available");
      }
      (void)links_.inbox->receive(kPollMs);
    }
  }

  bool is_present(const Replica& replica) const {
    const auto replicas = links_.peers->replicas();
    return std::ranges::find(replicas, replica) != replicas.end();
  }

  // kUnavailable: the replica is lost.
  Result<MediaFeatures> ask(const Replica& replica, const wire::PromptMedia& media, FunctionRef<bool()> keep_going,
                            int64_t end_ms) {
    RETURN_IF_ERROR(connect(replica.endpoint));
    ++job_;
    const auto cancel = [&] {
      wire::Message end = wire::EncodeEnd{job_, links_.endpoint, std::nullopt};
      (void)outbox_->send(end);
    };
    values_ = nullptr;
    for (int64_t ask_ms = 0; true;) {
      if (const int64_t now_ms = monotonic_ms(); now_ms >= ask_ms) {
        wire::Message wanted = wire::EncodeMedia{job_, links_.endpoint, facts_, media, media.traceparent};
        ask_ms = now_ms + (outbox_->send(wanted).ok() ? kAskAgainMs : kPollMs);
      }
      auto message = links_.inbox->receive(kPollMs);
      if (message) {
        ASSIGN_OR_RETURN(auto features, take(std::move(*message), media));
        if (features) return std::move(*features);
      }
      if (!keep_going()) {
        cancel();
        return Status(StatusCode::kCancelled, "no request waits for it any more");
      }
      if (!is_present(replica)) return error(StatusCode::kUnavailable, "the encoder at {} is lost", replica.endpoint);
      if (monotonic_ms() > end_ms) {
        cancel();
        return error(StatusCode::kDeadline, "it was not encoded within {} s", kFeaturesTimeoutMs / 1000);
      }
    }
  }

  // One connection is kept: the pictures of a request have one encoder, mostly.
  Status connect(const std::string& endpoint) {
    if (endpoint == connected_) return ok_status();
    connected_.clear();
    auto outbox = links_.connect(endpoint);
    if (!outbox.ok()) return error(StatusCode::kUnavailable, "{}", outbox.status().message());
    outbox_ = std::move(*outbox);
    connected_ = endpoint;
    return ok_status();
  }

  // The features where they are complete. What is of another job is late.
  Result<std::optional<MediaFeatures>> take(wire::Message message, const wire::PromptMedia& media) {
    if (const auto* end = std::get_if<wire::EncodeEnd>(&message); end != nullptr && end->job == job_) {
      if (!end->failure) return error(StatusCode::kUnavailable, "the encoder ended it");
      return Status(end->failure->code, end->failure->message);
    }
    const auto* part = std::get_if<wire::FeaturesPart>(&message);
    if (part == nullptr || part->job != job_) return std::optional<MediaFeatures>();
    RETURN_IF_ERROR(check(*part, media));
    const int64_t all = int64_t{part->sets} * part->rows * part->hidden_size;
    if (values_ == nullptr) values_ = std::make_shared<std::vector<float>>();
    values_->resize(static_cast<std::size_t>(all));
    std::memcpy(values_->data() + part->first, part->bytes.bytes.data(), part->bytes.bytes.size());
    received_ = part->first + static_cast<int64_t>(part->bytes.bytes.size() / sizeof(float));
    if (received_ < all) return std::optional<MediaFeatures>();
    received_ = 0;
    return std::optional(MediaFeatures{part->rows, part->sets, part->hidden_size, std::exchange(values_, nullptr)});
  }

  // kUnavailable, so that it is asked for again: a part was lost or damaged.
  Status check(const wire::FeaturesPart& part, const wire::PromptMedia& media) {
    const bool picture = media.kind == wire::MediaKind::kImage;
    const int32_t sets = picture && config_.vision ? config_.vision->feature_sets() : 1;
    if (part.rows != media.rows || part.sets != sets || part.hidden_size != config_.hidden_size) {
      return internal_error("features of {} x {} x {} came; wanted {} x {} x {}", part.sets, part.rows,
                            part.hidden_size, sets, media.rows, config_.hidden_size);
    }
    const int64_t wanted = values_ == nullptr ? 0 : received_;
    if (part.first != wanted) {
      return error(StatusCode::kUnavailable, "features from value {} on came; wanted {}", part.first, wanted);
    }
    if (part.checksum == wire::features_checksum(part)) return ok_status();
    return error(StatusCode::kUnavailable, "the checksum of its features is wrong");
  }

  const transfer::TransferLinks links_;
  const wire::EncoderFacts facts_;
  const ModelConfig config_;
  std::shared_ptr<Outbox> outbox_;  // to `connected_`
  std::string connected_;
  uint64_t job_ = 0;
  std::shared_ptr<std::vector<float>> values_;  // of the job; null: none came yet
  int64_t received_ = 0;
};

}  // namespace

void set_media_positions(int32_t rows, std::span<const wire::PromptMedia> media, int32_t merge, PromptInput& input) {
  std::vector<PictureRows> pictures;
  for (const wire::PromptMedia& one : media) {
    if (one.kind != wire::MediaKind::kImage) continue;
    pictures.push_back({one.begin, one.grid_h / merge, one.grid_w / merge});
  }
  MropePositions positions = mrope_positions(rows, pictures);
  input.positions = std::move(positions.rows);
  input.delta = positions.delta;
}

std::unique_ptr<MediaModel> make_remote_media(transfer::TransferLinks links, wire::EncoderFacts facts,
                                              const ModelConfig& config) {
  return std::make_unique<RemoteMedia>(std::move(links), std::move(facts), config);
}

}  // namespace millrace
