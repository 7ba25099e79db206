// xxhash.h, with XXH3 in the variant that is fastest on the machine it runs on (SSE2, AVX2 or AVX-512; all give the
// same sums): two to three times the rate of what the library's plain functions do. For .cc files alone.
//
// Thread safety: pure functions.
#pragma once

#include <xxhash.h>

#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace millrace {

// A running checksum over fields, each with its length, so that no two lists of them look alike.
class FieldsChecksum {
 public:
  void add(const void* data, std::size_t size) {
    const uint64_t fields[2] = {size, XXH3_64bits(data, size)};
    sum_ = XXH3_64bits_withSeed(fields, sizeof fields, sum_);
  }
  void add(std::string_view text) { add(text.data(), text.size()); }
  uint64_t value() const { return sum_; }

 private:
  uint64_t sum_ = 0;
};

// The checksum of bytes that come in parts: the sum of all of them, however they are cut.
class StreamChecksum {
 public:
  StreamChecksum() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void add(const void* data, std::size_t size) { XXH3_64bits_update(state_.get(), data, size); }
  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

// After sums of much data: the library's AVX variants return with the upper halves of the vector registers in use, and
// SSE code of the same thread is slower until they are cleared (quantizing a model: by a third).
inline void clear_upper_vectors() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx")) asm volatile("vzeroupper");
#endif
}

}  // namespace millrace
