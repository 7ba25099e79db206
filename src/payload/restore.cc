#include <algorithm>
#include <tuple>

#include "base/utf8.h"
#include "payload/packing.h"
#include "payload/tree_path.h"
#include "wire/limits.h"
#include "wire/msgpack.h"

namespace millrace {
namespace {

// Where a tensor's bytes are in the parts; all of its description is checked but the path.
// In the sequence in which each check relies on the one before: the dtype's size, the shape's bytes, then the range in
// the part.
Result<SharedTensor> make_tensor(const wire::TensorInfo& info, const std::vector<SharedBytes>& parts) {
  if (info.path.size() > wire::kMaxPathBytes) {
    return invalid_argument("a path of {} bytes; wanted at most {}", info.path.size(), wire::kMaxPathBytes);
  }
  const auto dtype = dtype_from_name(info.dtype);
  if (!dtype) return invalid_argument("dtype \"{}\" is unknown", shown(info.dtype));
  if (info.shape.size() > kMaxDims) return invalid_argument("rank {}; wanted at most {}", info.shape.size(), kMaxDims);
  ASSIGN_OR_RETURN(const std::size_t wanted, checked_bytes(info.shape.data(), info.shape.size(), dtype_size(*dtype)));
  SharedTensor tensor{.dtype = *dtype};
  // At most kMaxDims, checked above: a Shape has a fixed array.
  for (const int64_t extent : info.shape) tensor.shape.push_back(extent);
  if (info.size != wanted) {
    return invalid_argument("{} bytes for {} {}; wanted {}", info.size, info.dtype, tensor.shape.to_string(), wanted);
  }
  if (info.size == 0) {
    if (info.part == 0 && info.offset == 0) return tensor;
    return invalid_argument("part {}, offset {} of a tensor without bytes; wanted 0, 0", info.part, info.offset);
  }
  if (info.part >= parts.size()) return invalid_argument("part {}; wanted one below {}", info.part, parts.size());
  const SharedBytes& part = parts[info.part];
  // By subtraction, as the sum of two numbers of a peer may wrap.
  if (info.offset > part.size_bytes() || info.size > part.size_bytes() - info.offset) {
    return invalid_argument("{} bytes at offset {} of a part that has {}", info.size, info.offset, part.size_bytes());
  }
  // Both: the offset by itself, so that a payload is good or bad for every receiver alike, and the address, for a part
  // that begins unaligned here.
  const auto address = reinterpret_cast<uintptr_t>(part.data()) + info.offset;
  if (info.offset % dtype_size(*dtype) || address % dtype_size(*dtype)) {
    return invalid_argument("offset {} is unaligned for {}; wanted a multiple of {} in an aligned part", info.offset,
                            info.dtype, dtype_size(*dtype));
  }
  tensor.bytes = part.slice(info.offset, info.size);
  return tensor;
}

// Tensors may share the very same range of a part, but not overlap otherwise; and a part is there for a tensor.
Status check_ranges(const std::vector<wire::TensorInfo>& infos, std::size_t part_count) {
  std::vector<const wire::TensorInfo*> ranges;
  for (const wire::TensorInfo& info : infos) {
    if (info.size > 0) ranges.push_back(&info);
  }
  const auto key = [](const wire::TensorInfo* info) { return std::tuple(info->part, info->offset, info->size); };
  // Sorted by part, offset and size: two ranges that overlap have an overlapping pair of neighbours, so one walk finds
  // it.
  std::sort(ranges.begin(), ranges.end(), [&](auto* a, auto* b) { return key(a) < key(b); });
  std::size_t parts_seen = 0;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const wire::TensorInfo* const last = i ? ranges[i - 1] : nullptr;
    if (last && last->part == ranges[i]->part) {
      if (key(last) == key(ranges[i]) || last->offset + last->size <= ranges[i]->offset) continue;
      return invalid_argument("tensor {}: its {} bytes at offset {} of part {} overlap those of tensor {}",
                              shown(ranges[i]->path), ranges[i]->size, ranges[i]->offset, ranges[i]->part,
                              shown(last->path));
    }
    ++parts_seen;
  }
  if (parts_seen == part_count) return ok_status();
  return invalid_argument("{} parts of which the tensors use {}; wanted all used", part_count, parts_seen);
}

class Restorer {
 public:
  Restorer(std::string_view tree, const std::vector<wire::TensorInfo>& infos, std::vector<SharedTensor> tensors)
      : in_({tree.data(), tree.size()}), infos_(infos), tensors_(std::move(tensors)), used_(infos.size()) {}

  Status all(Value& out) {
    // The root. The others are counted by the container that declares them.
    nodes_ = 1;
    RETURN_IF_ERROR(read(out, 0).with_prefix(path_.where()));
    if (!in_.at_end()) return invalid_argument("bytes from {} on, after the end of the tree", in_.position());
    const auto missing = std::find(used_.begin(), used_.end(), false);
    if (missing == used_.end()) return ok_status();
    return invalid_argument("tensor {} of {} is not in the tree", missing - used_.begin(), used_.size());
  }

 private:
  // Recursive, to kMaxValueDepth at most. On an error path_ stays where the error is, for the message.
  Status read(Value& out, int depth) {
    using enum wire::MsgpackType;
    switch (in_.peek()) {
      case kNil:
        in_.skip_nil();
        return ok_status();
      case kBoolean:
        return assign(out, in_.boolean());
      case kInteger:
        return assign(out, in_.integer());
      case kNumber:
        return assign(out, in_.number());
      case kString:
        return read_string(out);
      case kBinary: {
        ASSIGN_OR_RETURN(const std::string_view bytes, in_.binary(wire::kMaxTreeBytes));
        out = ValueBytes{std::string(bytes)};
        return ok_status();
      }
      case kArray:
        return read_list(out, depth);
      case kMap:
        return read_map(out, depth);
      case kExt:
        return read_tensor(out);
      case kEnd:
      case kInvalid:
        break;
    }
    return invalid_argument("{} at byte {} of the tree; wanted a value", in_.at_end() ? "the end" : "byte 0xc1",
                            in_.position());
  }

  template <typename T>
  Status assign(Value& out, Result<T> value) {
    RETURN_IF_ERROR(value.status());
    out = *value;
    return ok_status();
  }

  Status read_string(Value& out) {
    ASSIGN_OR_RETURN(const std::string_view text, in_.string(wire::kMaxTreeBytes));
    if (const std::size_t fault = utf8_find_invalid(text); fault != std::string_view::npos) {
      return invalid_argument("byte {:#04x} at offset {} of a string; wanted UTF-8", static_cast<uint8_t>(text[fault]),
                              fault);
    }
    out = std::string(text);
    return ok_status();
  }

  // The entries are counted when they are declared, so what is reserved for all open containers together is bounded.
  Status open_container(const Result<std::size_t>& entries, int depth) {
    RETURN_IF_ERROR(entries.status());
    if (depth >= kMaxValueDepth) return invalid_argument("a container inside {} others; wanted fewer", depth);
    nodes_ += *entries;
    return ok_status();
  }

  Status read_list(Value& out, int depth) {
    // nodes_ never exceeds the limit, as array() and map() refuse more than what is left.
    const auto entries = in_.array(kMaxValueNodes - nodes_);
    RETURN_IF_ERROR(open_container(entries, depth));
    ValueList list(*entries);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::size_t mark = path_.enter_index(i);
      RETURN_IF_ERROR(read(list[i], depth + 1));
      path_.back(mark);
    }
    out = std::move(list);
    return ok_status();
  }

  Status read_map(Value& out, int depth) {
    const auto entries = in_.map(kMaxValueNodes - nodes_);
    RETURN_IF_ERROR(open_container(entries, depth));
    ValueMap map(*entries);
    std::vector<std::string_view> keys;
    keys.reserve(*entries);
    for (auto& [key, value] : map) {
      ASSIGN_OR_RETURN(const std::string_view read_key, in_.string(wire::kMaxPathBytes));
      RETURN_IF_ERROR(check_key(read_key));
      // Views into the tree, which the caller keeps until restore() returns.
      keys.push_back(read_key);
      key = read_key;
      const std::size_t mark = path_.enter_key(key);
      RETURN_IF_ERROR(read(value, depth + 1));
      path_.back(mark);
    }
    RETURN_IF_ERROR(check_unique(keys));
    out = std::move(map);
    return ok_status();
  }

  Status read_tensor(Value& out) {
    ASSIGN_OR_RETURN(const wire::MsgpackExt ext, in_.ext(wire::kMaxTreeBytes));
    if (ext.type != kTensorExt || ext.bytes.size() != 4) {
      return invalid_argument("an extension of type {} and {} bytes; wanted type {} and 4 bytes", ext.type,
                              ext.bytes.size(), kTensorExt);
    }
    std::size_t index = 0;
    for (const char byte : ext.bytes) index = index << 8 | static_cast<uint8_t>(byte);
    if (index >= infos_.size()) return invalid_argument("tensor {}; wanted one below {}", index, infos_.size());
    if (used_[index]) return invalid_argument("tensor {} for the second time; wanted it once", index);
    // A stage finds tensors by path without reading the tree; a list that disagrees with the tree would give it
    // another's bytes.
    if (infos_[index].path != path_.text()) {
      return invalid_argument("tensor {}, whose path is stated as \"{}\"", index, shown(infos_[index].path));
    }
    used_[index] = true;
    // Moved out: used_ keeps a second reference to it from coming here.
    out = std::move(tensors_[index]);
    return ok_status();
  }

  wire::MsgpackReader in_;
  TreePath path_;
  std::size_t nodes_ = 0;
  const std::vector<wire::TensorInfo>& infos_;
  std::vector<SharedTensor> tensors_;
  std::vector<bool> used_;
};

Result<Value> restore_checked(std::string_view tree, const std::vector<wire::TensorInfo>& infos,
                              const std::vector<SharedBytes>& parts) {
  if (tree.size() > wire::kMaxTreeBytes) {
    return invalid_argument("a tree of {} bytes; wanted at most {}", tree.size(), wire::kMaxTreeBytes);
  }
  if (infos.size() > kMaxValueTensors) {
    return invalid_argument("{} tensors; wanted at most {}", infos.size(), kMaxValueTensors);
  }
  std::vector<SharedTensor> tensors;
  // Behind the limit above, so a count of a peer's allocates a bounded amount.
  tensors.reserve(infos.size());
  for (const wire::TensorInfo& info : infos) {
    auto tensor = make_tensor(info, parts);
    RETURN_IF_ERROR(tensor.status().with_prefix("tensor " + shown(info.path)));
    tensors.push_back(std::move(*tensor));
  }
  // Behind make_tensor(), which has refused offsets and sizes whose sum wraps.
  RETURN_IF_ERROR(check_ranges(infos, parts.size()));
  Value value;
  RETURN_IF_ERROR(Restorer(tree, infos, std::move(tensors)).all(value));
  return value;
}

}  // namespace

Result<Value> restore(std::string_view tree, const std::vector<wire::TensorInfo>& infos,
                      const std::vector<SharedBytes>& parts) {
  auto value = restore_checked(tree, infos, parts);
  // One code for all that is refused, whichever of the shared checks found it.
  if (!value.ok()) return invalid_argument("payload: {}", value.status().message());
  return value;
}

}  // namespace millrace
