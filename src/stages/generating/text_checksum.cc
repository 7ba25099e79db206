#include "stages/generating/text_checksum.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/xxh3.h"
#include "formats/gguf_model.h"
#include "formats/mapped_file.h"
#include "text/tokenizer.h"

namespace millrace {
Result<uint64_t> text_checksum(const std::string& model) {
  FieldsChecksum sum;
  ASSIGN_OR_RETURN(const std::optional<std::string> gguf, find_gguf(model));
  if (gguf) {
    ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*gguf));
    const auto bytes = opened.files()[0].file.bytes();
    sum.add(bytes.data(), std::min<std::size_t>(bytes.size(), opened.header().data_start));
    return std::max<uint64_t>(sum.value(), 1);  // 0 means none
  }
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    const auto file = MappedFile::open(model + "/" + name, MapMode::kMap, kMaxTokenizerFileBytes);
    if (!file.ok() && file.status().code() != StatusCode::kNotFound) return file.status();
    sum.add(name);
    if (file.ok()) sum.add(file->bytes().data(), file->bytes().size());
  }
  return std::max<uint64_t>(sum.value(), 1);  // 0 means none
}

}  // namespace millrace
