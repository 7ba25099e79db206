// The files of a folder with their sizes and checksums, as manifests hold them: of a shard, of a snapshot of weights.
//
//   "files": {"model.safetensors": {"bytes": 1234, "xxh3": "0123456789abcdef"}, ...}
//
// Thread safety: values; free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "formats/mapped_file.h"

namespace millrace {

inline constexpr std::size_t kMaxSummedFiles = 4096;  // of one manifest

struct FileSum {
  std::string name;
  uint64_t bytes = 0;
  uint64_t xxh3 = 0;  // XXH3, 64 bits, of its bytes

  friend bool operator==(const FileSum&, const FileSum&) = default;
};

// A checksum in JSON: 16 hexadecimal digits, for a number keeps 53 bits.
Result<uint64_t> read_hex_sum(const Json& object, const char* key);

// The object under "files", over several lines with this indentation.
std::string file_sums_json(const std::vector<FileSum>& files, std::string_view indent);
// kInvalidArgument: it is not there, or what is wrong with it. Names are those of files in the manifest's own folder.
Result<std::vector<FileSum>> read_file_sums(const Json& manifest);

// Reads every byte of the file.
Result<FileSum> sum_file(const std::string& path);
// Reads every byte of the files. kNotFound: one is missing. kInvalidArgument: one has another size or checksum than
// `manifest`, the name of a file, has it; both are in the message.
Status check_file_sums(const std::string& folder, const std::vector<FileSum>& files, const char* manifest,
                       const ProgressFn& progress);

}  // namespace millrace
