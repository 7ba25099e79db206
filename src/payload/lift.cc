#include <cstring>
#include <map>
#include <tuple>

#include "base/utf8.h"
#include "payload/packing.h"
#include "payload/tree_path.h"
#include "wire/limits.h"
#include "wire/msgpack.h"

namespace millrace {
namespace {

static_assert(kMaxDims == wire::kMaxRank && kMaxValueTensors == wire::kMaxTensors);
static_assert(wire::kMaxParts >= wire::kMaxTensors, "every tensor may be a part");

template <typename... Args>
Status too_large(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::kTooLarge, format, std::forward<Args>(args)...);
}

// Depth first, in one pass: the numbers of tensors are their positions in the tree, and restore() meets them in the
// same sequence. On an error path_ stays where the error is, for the message.
class Lifter {
 public:
  Status value(const Value& value, int depth) {
    // Recursion is bounded by kMaxValueDepth in open_container(), the work by the nodes.
    if (++nodes_ > kMaxValueNodes) return too_large("more than {} values; wanted at most so many", kMaxValueNodes);
    RETURN_IF_ERROR(std::visit([&](const auto& one) { return write(one, depth); }, value.any()));
    // Behind each value, as the heads are written without a check: they are a few bytes.
    return check_capacity(0);
  }
  const TreePath& path() const { return path_; }
  Lifted take() {
    lifted_.tree = out_.take();
    return std::move(lifted_);
  }

 private:
  // kTooLarge unless the tree has space for so many bytes more.
  Status check_capacity(std::size_t bytes) const {
    // Both are sizes of what is in memory, so the sum does not wrap.
    if (out_.size() + bytes <= wire::kMaxTreeBytes) return ok_status();
    return too_large("{} bytes in the tree and {} more; wanted at most {}; large data is better a tensor", out_.size(),
                     bytes, wire::kMaxTreeBytes);
  }

  Status write(std::monostate, int) {
    out_.nil();
    return ok_status();
  }
  Status write(bool value, int) {
    out_.boolean(value);
    return ok_status();
  }
  Status write(int64_t value, int) {
    out_.integer(value);
    return ok_status();
  }
  Status write(double value, int) {
    out_.number(value);
    return ok_status();
  }
  Status write(const std::string& text, int) {
    RETURN_IF_ERROR(check_capacity(text.size()));
    // Here and not at the receiver: msgpack distinguishes text from bytes, and so do the languages of other stages.
    if (const std::size_t fault = utf8_find_invalid(text); fault != std::string_view::npos) {
      return invalid_argument("byte {:#04x} at offset {} of a string; wanted UTF-8, or bytes",
                              static_cast<uint8_t>(text[fault]), fault);
    }
    out_.string(text);
    return ok_status();
  }
  Status write(const ValueBytes& value, int) {
    RETURN_IF_ERROR(check_capacity(value.bytes.size()));
    out_.binary(value.bytes);
    return ok_status();
  }

  // Each entry takes a byte at least, so a container that cannot fit is refused before its first entry is visited.
  Status open_container(std::size_t entries, int depth) const {
    if (depth >= kMaxValueDepth) return too_large("a container inside {} others; wanted fewer", depth);
    if (entries > kMaxValueNodes) return too_large("{} entries; wanted at most {}", entries, kMaxValueNodes);
    return check_capacity(entries);
  }

  Status write(const ValueList& list, int depth) {
    RETURN_IF_ERROR(open_container(list.size(), depth));
    out_.array(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::size_t mark = path_.enter_index(i);
      RETURN_IF_ERROR(value(list[i], depth + 1));
      path_.back(mark);
    }
    return ok_status();
  }
  Status write(const ValueMap& map, int depth) {
    RETURN_IF_ERROR(open_container(map.size(), depth));
    std::vector<std::string_view> keys;
    keys.reserve(map.size());
    for (const auto& [key, child] : map) {
      RETURN_IF_ERROR(check_key(key));
      keys.emplace_back(key);
    }
    // Value::set() keeps a key once, but a ValueMap can be built with any entries.
    RETURN_IF_ERROR(check_unique(keys));
    out_.map(map.size());
    for (const auto& [key, child] : map) {
      RETURN_IF_ERROR(check_capacity(key.size()));
      out_.string(key);
      const std::size_t mark = path_.enter_key(key);
      RETURN_IF_ERROR(value(child, depth + 1));
      path_.back(mark);
    }
    return ok_status();
  }

  Status write(const SharedTensor& tensor, int) {
    const std::size_t index = lifted_.tensors.size();
    if (index == kMaxValueTensors) return too_large("more than {} tensors; wanted at most so many", index);
    // Of tensors alone, as only their paths travel; a string may stand deeper.
    if (path_.text().size() > wire::kMaxPathBytes) {
      return too_large("a tensor's path of {} bytes; wanted at most {}", path_.text().size(), wire::kMaxPathBytes);
    }
    wire::TensorInfo info{.path = path_.text(), .dtype = std::string(dtype_name(tensor.dtype))};
    for (int i = 0; i < tensor.shape.rank(); ++i) info.shape.push_back(tensor.shape[i]);
    // Of the shape; the bytes that the tensor holds are compared with it below, and restore() does the same.
    ASSIGN_OR_RETURN(info.size, checked_bytes(info.shape.data(), info.shape.size(), dtype_size(tensor.dtype)));
    if (info.size != tensor.bytes.size_bytes()) {
      return invalid_argument("a tensor {} {} that holds {} bytes; wanted {}", info.dtype, tensor.shape.to_string(),
                              tensor.bytes.size_bytes(), info.size);
    }
    if (reinterpret_cast<uintptr_t>(tensor.bytes.data()) % dtype_size(tensor.dtype)) {
      return invalid_argument("a tensor at an address that is unaligned for {}", info.dtype);
    }
    if (info.size > 0) info.part = part_of(tensor.bytes);
    lifted_.tensors.push_back(std::move(info));
    // As all numbers of msgpack, written here because an ext's bytes are the application's.
    char big_endian[4];
    for (int i = 0; i < 4; ++i) big_endian[i] = static_cast<char>(index >> (24 - 8 * i));
    out_.ext(kTensorExt, {big_endian, sizeof(big_endian)});
    return ok_status();
  }

  // The address and the size identify a block: tensors that share one come back sharing it. Views of a block that are
  // cut differently are parts of their own, and bytes may then travel twice.
  uint32_t part_of(const SharedBytes& bytes) {
    const auto next = static_cast<uint32_t>(lifted_.parts.size());
    const auto [at, fresh] = parts_.try_emplace({bytes.data(), bytes.size_bytes(), bytes.device()}, next);
    if (fresh) lifted_.parts.push_back(bytes);
    return at->second;
  }

  wire::MsgpackWriter out_;
  TreePath path_;
  std::size_t nodes_ = 0;
  Lifted lifted_;
  std::map<std::tuple<const std::byte*, std::size_t, Device>, uint32_t> parts_;
};

}  // namespace

Result<Lifted> lift(const Value& value) {
  Lifter lifter;
  RETURN_IF_ERROR(lifter.value(value, 0).with_prefix(lifter.path().where()).with_prefix("payload"));
  return lifter.take();
}

Lifted pack(Lifted lifted) {
  if (lifted.parts.size() <= 1) return lifted;
  std::vector<std::size_t> starts;
  std::size_t end = 0;
  for (const SharedBytes& part : lifted.parts) {
    CHECK(part.device() == Device::kHost);
    // Aligned as a part by itself would be, so each tensor's alignment in its part holds in the block as well.
    starts.push_back((end + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment);
    end = starts.back() + part.size_bytes();
  }
  Buffer block(end);
  std::size_t filled = 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    // A new buffer has what was in memory before; what leaves the process must not show it, and the same value gives
    // the same bytes.
    std::memset(block.data() + filled, 0, starts[i] - filled);
    std::memcpy(block.data() + starts[i], lifted.parts[i].data(), lifted.parts[i].size_bytes());
    filled = starts[i] + lifted.parts[i].size_bytes();
  }
  for (wire::TensorInfo& info : lifted.tensors) {
    if (info.size == 0) continue;
    info.offset += starts[info.part];
    info.part = 0;
  }
  lifted.parts.clear();
  lifted.parts.emplace_back(std::move(block));
  return lifted;
}

}  // namespace millrace
