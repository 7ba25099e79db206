// Another sample rate, by libsoxr's HQ filter: what librosa.resample and python-soxr compute. A stream goes through in
// blocks of any size, with the same bits for every division. Equal rates pass unchanged.
//
// Owner: the component that decodes or plays a stream; used by one thread at a time. It starts no threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

struct soxr;

namespace millrace {

// ceil(frames * to / from), as librosa counts. frames >= 0, rates >= 1; frames * to fits 63 bits.
int64_t resampled_length(int64_t frames, int from, int to);

class Resampler {
 public:
  // Both rates in Hz, >= 1. kResourceExhausted: no memory for its tables.
  static Result<Resampler> create(int from, int to);

  // Takes the next samples of the stream, appends what is complete to `out`.
  Status process(std::span<const float> in, std::vector<float>& out);
  // The end: appends the rest, so that resampled_length(all that went in) samples have come out. Nothing comes after.
  Status finish(std::vector<float>& out);

 private:
  struct Delete {
    void operator()(soxr* state) const;
  };

  Resampler(int from, int to) : from_(from), to_(to) {}

  int from_;
  int to_;
  int64_t taken_ = 0;
  int64_t made_ = 0;
  std::unique_ptr<soxr, Delete> state_;  // null: equal rates
};

}  // namespace millrace
