#include "stages/generating/tensors_hash.h"

#include <algorithm>

#include "base/xxh3.h"
#include "formats/shard_manifest.h"
#include "formats/weights.h"

namespace millrace {

Result<uint64_t> tensors_hash(const std::string& model) {
  ASSIGN_OR_RETURN(const std::optional<ShardManifest> shard, read_shard_manifest(model));
  if (shard) return shard->tensors_hash;
  ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(model));
  FieldsChecksum sum;
  for (const std::string& name : store.names()) {
    ASSIGN_OR_RETURN(const TensorView tensor, store.get_any(name));
    sum.add(name);
    sum.add(dtype_name(tensor.dtype));
    sum.add(tensor.shape.to_string());
    const auto* bytes = static_cast<const char*>(tensor.data);
    const std::size_t size = std::min(tensor.size_bytes(), kSampleBytes), last = tensor.size_bytes() - size;
    for (const std::size_t at : {std::size_t{0}, last / 2, last}) sum.add(bytes + at, size);
  }
  clear_upper_vectors();
  return std::max<uint64_t>(sum.value(), 1);
}

}  // namespace millrace
