#include "media/resampler.h"

#include <soxr.h>

#include <algorithm>
#include <array>

namespace millrace {
namespace {

constexpr std::size_t kBlock = 4096;  // samples that leave the library at once

Status failure(soxr_error_t reason) {
  return error(StatusCode::kResourceExhausted, "the resampler failed: {}", soxr_strerror(reason));
}

}  // namespace

int64_t resampled_length(int64_t frames, int from, int to) {
  CHECK(frames >= 0 && from >= 1 && to >= 1);
  return (frames * to + from - 1) / from;
}

void Resampler::Delete::operator()(soxr* state) const { soxr_delete(state); }

Result<Resampler> Resampler::create(int from, int to) {
  CHECK(from >= 1 && to >= 1);
  Resampler made(from, to);
  if (from == to) return made;
  const soxr_io_spec_t samples = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
  soxr_error_t reason = nullptr;
  made.state_.reset(soxr_create(from, to, 1, &reason, &samples, &quality, &runtime));
  if (reason != nullptr || made.state_ == nullptr) return failure(reason);
  return made;
}

Status Resampler::process(std::span<const float> in, std::vector<float>& out) {
  taken_ += static_cast<int64_t>(in.size());
  if (state_ == nullptr) {
    out.insert(out.end(), in.begin(), in.end());
    made_ = taken_;
    return ok_status();
  }
  std::array<float, kBlock> block;
  std::size_t made = kBlock;
  while (!in.empty() || made == kBlock) {
    std::size_t used = 0;
    // An empty span has a pointer here all the same: null would announce the end.
    const float* from = in.empty() ? block.data() : in.data();
    if (const auto reason = soxr_process(state_.get(), from, in.size(), &used, block.data(), kBlock, &made)) {
      return failure(reason);
    }
    in = in.subspan(used);
    out.insert(out.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(made));
    made_ += static_cast<int64_t>(made);
  }
  return ok_status();
}

Status Resampler::finish(std::vector<float>& out) {
  const int64_t wanted = resampled_length(taken_, from_, to_);
  std::array<float, kBlock> block;
  std::size_t made = state_ == nullptr ? 0 : kBlock;
  while (made > 0) {
    if (const auto reason = soxr_process(state_.get(), nullptr, 0, nullptr, block.data(), kBlock, &made)) {
      return failure(reason);
    }
    out.insert(out.end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(made));
    made_ += static_cast<int64_t>(made);
  }
  // The library rounds to the nearest number of samples: librosa adds a zero where that is one less than ceil().
  CHECK(made_ <= wanted + 1 && wanted <= made_ + 1);
  out.resize(out.size() + static_cast<std::size_t>(wanted) - static_cast<std::size_t>(made_));
  made_ = wanted;
  return ok_status();
}

}  // namespace millrace
