// Layout: the parts of a put, one behind the other, and the pieces in which they travel. Both sides compute the same
// pieces from the sizes and from which parts are in device memory, so only the offset of a piece is ever said.
//
// A piece is at most kPieceBytes. It holds many small parts or a run of one large one; a large part in device memory
// shares its pieces with no other part, so that it can be sent and received where it lies, without a staging buffer.
//
// Thread safety: a value.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::nccl {

inline constexpr std::size_t kPieceBytes = std::size_t{8} << 20;
inline constexpr std::size_t kDirectBytes = std::size_t{256} << 10;  // a part of this size is large

class Layout {
 public:
  Layout(std::span<const std::size_t> sizes, std::vector<bool> on_device) : on_device_(std::move(on_device)) {
    for (const std::size_t size : sizes) starts_.push_back(starts_.back() + size);
    on_device_.resize(sizes.size());
  }

  std::size_t total() const { return starts_.back(); }
  std::size_t parts() const { return on_device_.size(); }
  std::size_t size(std::size_t part) const { return starts_[part + 1] - starts_[part]; }
  bool on_device(std::size_t part) const { return on_device_[part]; }
  bool alone(std::size_t part) const { return on_device_[part] && size(part) >= kDirectBytes; }

  // Where the piece that begins at `at` ends; at < total().
  std::size_t piece_end(std::size_t at) const {
    std::size_t part = part_at(at);
    const std::size_t most = std::min(total(), at + kPieceBytes);
    if (alone(part)) return std::min(most, starts_[part + 1]);
    while (starts_[part + 1] < most) {
      if (alone(++part)) return starts_[part];
    }
    return most;
  }

  struct Slice {
    std::size_t part;
    std::size_t offset;  // in the part
    std::size_t size;
  };
  // What [at, end) is made of, in order.
  std::vector<Slice> slices(std::size_t at, std::size_t end) const {
    std::vector<Slice> found;
    for (std::size_t part = part_at(at); at < end; ++part) {
      const std::size_t stop = std::min(end, starts_[part + 1]);
      if (stop > at) found.push_back({part, at - starts_[part], stop - at});
      at = std::max(at, stop);
    }
    return found;
  }

  // A bit for each part, for the wire.
  std::string device_bits() const {
    std::string bits((parts() + 7) / 8, '\0');
    for (std::size_t i = 0; i < parts(); ++i) bits[i / 8] = static_cast<char>(bits[i / 8] | (on_device_[i] << (i % 8)));
    return bits;
  }
  static std::optional<std::vector<bool>> parse_bits(std::string_view bits, std::size_t parts) {
    if (bits.size() != (parts + 7) / 8) return std::nullopt;
    std::vector<bool> on_device(parts);
    for (std::size_t i = 0; i < parts; ++i) on_device[i] = ((bits[i / 8] >> (i % 8)) & 1) != 0;
    return on_device;
  }

 private:
  std::size_t part_at(std::size_t at) const {
    return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin()) - 1;
  }

  std::vector<std::size_t> starts_ = {0};
  std::vector<bool> on_device_;
};

}  // namespace millrace::nccl
