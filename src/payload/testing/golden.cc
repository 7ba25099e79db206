#include "payload/testing/golden.h"

#include "wire/limits.h"
#include "wire/msgpack.h"

namespace millrace::testing {
namespace {

constexpr std::size_t kMaxCount = 5000;  // a little over what restore() takes

Result<std::vector<wire::TensorInfo>> read_tensors(wire::MsgpackReader& in) {
  ASSIGN_OR_RETURN(const std::size_t count, in.array(kMaxCount));
  std::vector<wire::TensorInfo> tensors(count);
  for (wire::TensorInfo& info : tensors) {
    ASSIGN_OR_RETURN(const std::size_t fields, in.array(6));
    if (fields != 6) return invalid_argument("{} fields of a tensor; wanted 6", fields);
    ASSIGN_OR_RETURN(info.path, in.string(kMaxCount));
    ASSIGN_OR_RETURN(info.dtype, in.string(kMaxCount));
    ASSIGN_OR_RETURN(const std::size_t rank, in.array(kMaxCount));
    info.shape.resize(rank);
    for (int64_t& extent : info.shape) {
      ASSIGN_OR_RETURN(extent, in.integer());
    }
    ASSIGN_OR_RETURN(const uint64_t part, in.unsigned_integer());
    info.part = static_cast<uint32_t>(part);
    ASSIGN_OR_RETURN(info.offset, in.unsigned_integer());
    ASSIGN_OR_RETURN(info.size, in.unsigned_integer());
  }
  return tensors;
}

Result<GoldenPayload> read_all(wire::MsgpackReader in) {
  GoldenPayload golden;
  ASSIGN_OR_RETURN(const std::size_t fields, in.array(5));
  if (fields < 3) return invalid_argument("{} fields; wanted 3 or 5", fields);
  ASSIGN_OR_RETURN(golden.tree, in.binary(wire::kMaxTreeBytes));
  ASSIGN_OR_RETURN(golden.tensors, read_tensors(in));
  ASSIGN_OR_RETURN(const std::size_t parts, in.array(kMaxCount));
  golden.part_bytes.resize(parts);
  for (uint64_t& size : golden.part_bytes) {
    ASSIGN_OR_RETURN(size, in.unsigned_integer());
  }
  if (fields < 5) return golden;
  ASSIGN_OR_RETURN(golden.packed_tensors, read_tensors(in));
  ASSIGN_OR_RETURN(golden.packed, in.binary(wire::kMaxTreeBytes));
  return golden;
}

}  // namespace

std::optional<GoldenPayload> read_golden(std::span<const char> file) {
  auto golden = read_all(wire::MsgpackReader(file));
  if (!golden.ok()) return std::nullopt;
  return std::move(*golden);
}

}  // namespace millrace::testing
