#include "stages/generating/text_checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "formats/gguf_model.h"
#include "formats/mapped_file.h"
#include "text/tokenizer.h"

namespace millrace {
namespace {

// A running checksum over fields, each with its length, so that no two lists of them look alike.
class Sum {
 public:
  void add(const void* data, std::size_t size) {
    const uint64_t fields[2] = {size, XXH3_64bits(data, size)};
    sum_ = XXH3_64bits_withSeed(fields, sizeof fields, sum_);
  }
  void add(std::string_view text) { add(text.data(), text.size()); }
  uint64_t value() const { return std::max<uint64_t>(sum_, 1); }  // 0 means none

 private:
  uint64_t sum_ = 0;
};

}  // namespace

Result<uint64_t> text_checksum(const std::string& model) {
  Sum sum;
  ASSIGN_OR_RETURN(const std::optional<std::string> gguf, find_gguf(model));
  if (gguf) {
    ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*gguf));
    const auto bytes = opened.files()[0].file.bytes();
    sum.add(bytes.data(), std::min<std::size_t>(bytes.size(), opened.header().data_start));
    return sum.value();
  }
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const auto file = MappedFile::open(model + "/" + name, MapMode::kMap, kMaxTokenizerFileBytes);
    if (!file.ok() && file.status().code() != StatusCode::kNotFound) return file.status();
    sum.add(name);
    if (file.ok()) sum.add(file->bytes().data(), file->bytes().size());
  }
  return sum.value();
}

}  // namespace millrace
