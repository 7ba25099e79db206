// What the relay reads from others: descriptors and the plugin host's messages. The first byte chooses. Whatever is
// accepted must come out of the encoder as the very same bytes.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "relay/descriptor.h"
#include "relay/plugin/message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace millrace;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    const Result<Descriptor> descriptor = decode_descriptor(bytes, "shm");
    if (descriptor.ok() && encode_descriptor(*descriptor) != bytes) std::abort();
  } else {
    const Result<plugin::Message> message = plugin::decode_message(bytes);
    if (message.ok() && plugin::encode_message(*message) != bytes) std::abort();
  }
  return 0;
}
