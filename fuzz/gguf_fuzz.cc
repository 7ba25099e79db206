// Any bytes as a GGUF file: the parser refuses or returns tensors that lie in the file, apart from each other.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "formats/gguf.h"
#include "formats/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto header = millrace::parse_gguf(file, "fuzz");
  if (!header.ok()) {
    if (header.status().message().empty()) std::abort();
    return 0;
  }
  uint64_t end = 0;
  for (const millrace::GgufTensor& tensor : header->tensors) {
    if (tensor.begin < end || tensor.end < tensor.begin || tensor.begin % header->alignment != 0) std::abort();
    if (header->data_start + tensor.end > size) std::abort();
    if (millrace::storage_bytes(tensor.dtype, tensor.shape.elements()) != tensor.end - tensor.begin) std::abort();
    if (millrace::hf_tensor_name(tensor.name).empty()) std::abort();
    end = tensor.end;
  }
  // Every value can be looked at.
  uint64_t seen = 0;
  for (const auto& [key, value] : header->metadata) {
    if (value.strings.size() != (value.type == millrace::GgufType::kString ? value.count : 0)) std::abort();
    for (uint64_t i = 0; i < value.count; ++i) {
      seen += value.integer(i).has_value() + value.real(i).has_value();
      if (!value.strings.empty()) seen += value.strings[i].size();
    }
  }
  return seen == UINT64_MAX;
}
