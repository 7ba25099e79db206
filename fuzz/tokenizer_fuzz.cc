// Fuzzes the loader of tokenizer.json and, where the input loads, encode, decode and the stream on a text of its own
// bytes.
//
// Input: a tokenizer.json, optionally followed by a zero byte and a text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace {

constexpr size_t kMaxTextBytes = 256;

void expect(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view file = input.substr(0, zero);
  const std::string_view tail =
      zero == std::string_view::npos ? std::string_view("a b <s> \xC3\xA9 12") : input.substr(zero + 1);
  const auto loaded = Tokenizer::from_json(file);
  if (!loaded.ok()) {
    expect(!loaded.status().message().empty());
    return 0;
  }
  const auto& tokenizer = *loaded;
  const std::string text = utf8_lossy(tail.substr(0, kMaxTextBytes));
  const size_t half = text.size() / 2;
  const std::vector<Segment> segments = {{text.substr(0, half), true}, {text.substr(half), false}};
  const auto ids = tokenizer->encode(segments);
  if (!ids.ok()) return 0;
  auto stops = StopStrings::create({"a", "ab", std::string("\0b", 2)}, false);
  IncrementalDetokenizer detokenizer(tokenizer, false);
  std::string joined;
  for (const int32_t id : *ids) {
    expect(tokenizer->has_token(id));
    const std::string piece = detokenizer.push(id);
    expect(utf8_find_invalid(piece) == std::string_view::npos);
    (void)stops->push(piece);
    joined += piece;
  }
  joined += detokenizer.finish();
  expect(joined == tokenizer->decode(*ids, false));
  return 0;
}
