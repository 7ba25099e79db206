#include "api/realtime/turn_detector.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace millrace::api {
namespace {

constexpr double kQuietestDb = -60, kLoudestDb = -20;
constexpr double kFullScale = 32768;

}  // namespace

double loud_level(double threshold) {
  CHECK(threshold >= 0 && threshold <= 1);
  return std::pow(10, (kQuietestDb + (kLoudestDb - kQuietestDb) * threshold) / 20);
}

TurnDetector::TurnDetector(int rate, double threshold, int64_t silence_ms)
    : frame_size_(static_cast<std::size_t>(rate) * kFrameMs / 1000),
      level_(loud_level(threshold)),
      quiet_frames_(std::max<int64_t>(1, (silence_ms + kFrameMs - 1) / kFrameMs)) {
  CHECK(frame_size_ > 0 && silence_ms >= 0);
  frame_.reserve(frame_size_);
}

bool TurnDetector::is_loud() const {
  double sum = 0, squares = 0;
  for (const int16_t sample : frame_) {
    sum += sample;
    squares += static_cast<double>(sample) * sample;
  }
  const double count = static_cast<double>(frame_.size()), mean = sum / count;
  return std::sqrt(std::max(0.0, squares / count - mean * mean)) / kFullScale > level_;
}

std::vector<TurnDetector::Change> TurnDetector::push(std::span<const int16_t> samples) {
  std::vector<Change> out;
  while (!samples.empty()) {
    const std::size_t take = std::min(samples.size(), frame_size_ - frame_.size());
    frame_.insert(frame_.end(), samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(take));
    samples = samples.subspan(take);
    if (frame_.size() < frame_size_) break;
    const bool changes = is_loud() != speaks_;
    frame_.clear();
    ++frames_;
    run_ = changes ? run_ + 1 : 0;
    if (run_ < (speaks_ ? quiet_frames_ : kLoudFrames)) continue;
    speaks_ = !speaks_;
    const int64_t frame = speaks_ ? frames_ - run_ : frames_;
    out.push_back({speaks_, frame * static_cast<int64_t>(frame_size_)});
    run_ = 0;
  }
  return out;
}

void TurnDetector::end_turn() {
  speaks_ = false;
  run_ = 0;
}

}  // namespace millrace::api
