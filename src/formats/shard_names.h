// The names of the files of a model that lies in several: shards of safetensors, from their index, and of GGUF.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kMaxShards = 4096;

// The shards that model.safetensors.index.json names. A shard lies in the folder of its index: an index must not be
// able to name /etc/passwd. `path` stands in the messages. kInvalidArgument, kTooLarge.
Result<std::set<std::string>> shard_names(const Json& index, const std::string& path);

// "PREFIX-00002-of-00005.gguf".
struct GgufShardName {
  std::string prefix;
  int number = 0;  // from 1
  int count = 0;

  std::string path(int i) const;  // of shard i
};
// nullopt: no such name.
std::optional<GgufShardName> parse_gguf_shard_name(std::string_view path);

}  // namespace millrace
