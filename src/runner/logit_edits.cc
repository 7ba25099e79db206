#include "runner/logit_edits.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float edited(double x, int32_t count, double bias, const SamplingSpec& spec) {
  if (count > 0) {
    x -= spec.frequency_penalty * count;
    x -= spec.presence_penalty;
    x = x > 0 ? x / spec.repetition_penalty : x * spec.repetition_penalty;
  }
  x += bias;
  return static_cast<float>(std::clamp(x, -double{kLargest}, double{kLargest}));
}

}  // namespace

LogitEdits::LogitEdits(int32_t vocab_size) : place_(static_cast<std::size_t>(vocab_size), -1) {}

bool LogitEdits::wanted(const SamplingSpec& spec, const Generated& generated) {
  return (spec.penalizes() && !generated.empty()) || !spec.logit_bias.empty() || !spec.banned.empty();
}

LogitEdits::Edit& LogitEdits::edit_of(int32_t id) {
  CHECK(id >= 0 && static_cast<std::size_t>(id) < place_.size());
  int32_t& place = place_[static_cast<std::size_t>(id)];
  if (place < 0) {
    place = static_cast<int32_t>(edits_.size());
    edits_.push_back({.id = id});
  }
  return edits_[static_cast<std::size_t>(place)];
}

Status LogitEdits::apply(std::span<float> logits, const SamplingSpec& spec, const Generated& generated) {
  CHECK(edits_.empty() && logits.size() == place_.size());
  if (spec.penalizes()) {
    for (const int32_t id : generated.before) ++edit_of(id).count;
    if (generated.last) ++edit_of(*generated.last).count;
  }
  for (const int32_t id : spec.banned) edit_of(id).banned = true;
  for (const wire::LogitBias& bias : spec.logit_bias) edit_of(bias.token).bias += bias.bias;
  Status status;
  for (Edit& edit : edits_) {
    float& logit = logits[static_cast<std::size_t>(edit.id)];
    edit.original = logit;
    if (!(logit <= kLargest) && status.ok()) {
      status = internal_error("the logit of token {} is {}; wanted a finite number or -inf", edit.id, logit);
    }
    // A model's own -inf is probability 0 and stays so.
    const bool never = edit.banned || logit == kMinusInfinity;
    logit = never ? kMinusInfinity : edited(logit, edit.count, edit.bias, spec);
  }
  if (!status.ok()) restore(logits);
  return status;
}

void LogitEdits::restore(std::span<float> logits) {
  for (const Edit& edit : edits_) {
    logits[static_cast<std::size_t>(edit.id)] = edit.original;
    place_[static_cast<std::size_t>(edit.id)] = -1;
  }
  edits_.clear();
}

}  // namespace millrace
