// Bytes of a control-plane frame: decode must refuse or give a message that encodes and decodes to itself.
//
// encode() writes every field, and the writer has one form for each value, so equal frames are equal messages.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "wire/codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace::wire;
  auto message = decode({reinterpret_cast<const char*>(data), size});
  if (!message.ok()) return 0;
  const auto frame = encode(*message);
  if (!frame.ok() || frame->size() > size) std::abort();
  const auto again = decode(*frame);
  if (!again.ok() || again->index() != message->index()) std::abort();
  const auto twice = encode(*again);
  if (!twice.ok() || *twice != *frame) std::abort();
  return 0;
}
