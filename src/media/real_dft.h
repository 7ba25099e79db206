// The power spectrum of real frames: |DFT|^2 in f64, by a mixed-radix (2, 3, 4, 5) transform of half the length.
//
// Owner: the function that computes a spectrogram; one thread, since it holds scratch. The bits depend on the frame
// alone.
#pragma once

#include <span>
#include <vector>

namespace millrace {

class RealDft {
 public:
  struct Complex {
    double re = 0;
    double im = 0;
  };

  // Even, at least 2, and with no prime factors but 2, 3 and 5.
  static bool supports(int size);
  explicit RealDft(int size);

  int size() const { return size_; }
  // `frame` has size() values, `out` gets size() / 2 + 1 powers, from 0 Hz to half the rate.
  void power(std::span<const double> frame, std::span<double> out);

 private:
  int size_;
  std::vector<int> factors_;     // of size() / 2
  std::vector<Complex> roots_;   // exp(-2 pi i k / (size() / 2)), k < size() / 2
  std::vector<Complex> split_;   // exp(-2 pi i k / size()), k <= size() / 2
  std::vector<Complex> values_;  // scratch
  std::vector<Complex> other_;
};

}  // namespace millrace
