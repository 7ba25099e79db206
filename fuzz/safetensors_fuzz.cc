// Any bytes as a safetensors file: the parser refuses or returns a header whose tensors cover the data exactly.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto header = millrace::parse_safetensors(file, "fuzz");
  if (!header.ok()) {
    if (header.status().message().empty()) std::abort();
    return 0;
  }
  uint64_t end = 0;
  for (const millrace::SafetensorsEntry& entry : header->tensors) {
    if (entry.begin != end || entry.end < entry.begin) std::abort();
    if (static_cast<uint64_t>(entry.shape.elements()) * millrace::dtype_size(entry.dtype) != entry.end - entry.begin) {
      std::abort();
    }
    end = entry.end;
  }
  if (header->data_start + end != size) std::abort();
  return 0;
}
