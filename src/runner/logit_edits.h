// LogitEdits: what a request asks to be changed in its own row of logits before a token is drawn, in place, and the way
// back to the model's own logits. Only the tokens that a penalty, a ban or a bias names are touched, so the cost goes
// with their number, not with the vocabulary.
//
// For a token x that was generated c times (prompts do not count), in this order, in f64, rounded to f32 once:
//   x -= frequency_penalty * c;  x -= presence_penalty where c > 0
//   x = -inf where it is banned
//   x = x > 0 ? x / repetition_penalty : x * repetition_penalty   where c > 0 (Keskar et al., CTRL, 2019, section 4.1,
//       with the sign looked at, as all servers do); once, however large c is
//   x += bias
// A banned token stays at -inf; every other result is kept inside the finite f32 numbers.
//
// Owner: one worker of the runner's compute pool. Thread safety: none. Invariant: between restore() and apply() nothing
// is edited.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "runner/runner.h"

namespace millrace {

class LogitEdits {
 public:
  explicit LogitEdits(int32_t vocab_size);

  // The tokens that penalties look at: `before`, and `last` where there is one.
  struct Generated {
    std::span<const int32_t> before;
    std::optional<int32_t> last;
    bool empty() const { return before.empty() && !last; }
  };

  // False: apply() would change no logit, and need not be called.
  static bool wanted(const SamplingSpec& spec, const Generated& generated);

  // `logits` has vocab_size elements; every id in `spec` and `generated` is inside the vocabulary (CHECK). kInternal,
  // with the row as it was, where a logit to be edited is NaN or +inf: editing must not hide a broken row.
  Status apply(std::span<float> logits, const SamplingSpec& spec, const Generated& generated);
  // Brings the row of the last apply() back, bit for bit.
  void restore(std::span<float> logits);

 private:
  struct Edit {
    int32_t id = 0;
    int32_t count = 0;
    bool banned = false;
    double bias = 0;
    float original = 0;
  };
  Edit& edit_of(int32_t id);

  std::vector<int32_t> place_;  // by id: its place in edits_, or -1
  std::vector<Edit> edits_;
};

}  // namespace millrace
