#include "api/base64.h"

#include <openssl/evp.h>

#include <algorithm>

namespace millrace::api {

void append_base64(std::string& out, const void* data, std::size_t size) {
  constexpr std::size_t kBlock = 3u << 20;  // a multiple of three: blocks join without padding
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t begin = 0; begin < size; begin += kBlock) {
    const std::size_t part = std::min(kBlock, size - begin), at = out.size();
    out.resize(at + (part + 2) / 3 * 4 + 1);  // the call writes a NUL too
    EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data() + at), bytes + begin, static_cast<int>(part));
    out.pop_back();
  }
}

}  // namespace millrace::api
