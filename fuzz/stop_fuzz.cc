// Stop strings, patterns, a text and cuts: the output must not depend on the cuts, nothing is emitted that is taken
// back, and whatever a client sends as a pattern neither crashes nor hangs.
//
// Input: one byte of options, then fields that end with 0xFE: two stop strings, two patterns, the text.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/stop_matcher.h"

namespace {

struct Seen {
  std::string text;
  std::optional<std::string> matched;
  bool failed = false;
};

Seen stream(millrace::StopMatcher matcher, std::string_view text, std::mt19937* random) {
  Seen seen;
  bool ended = false;
  const auto take = [&](const millrace::StopMatcher::Output& out) {
    if (ended && (!out.emit.empty() || out.matched_text || !out.status.ok())) std::abort();
    seen.text += out.emit;
    if (out.matched_text) seen.matched = out.matched_text;
    if (!out.status.ok()) seen.failed = true;
    ended = seen.matched || seen.failed;
  };
  while (!text.empty()) {
    const size_t size = random == nullptr ? text.size() : std::min<size_t>((*random)() % 6, text.size());
    take(matcher.push(text.substr(0, size)));
    text.remove_prefix(size);
  }
  take(matcher.finish());
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace millrace;
  if (size < 1 || size > 4096) return 0;
  const uint8_t options = data[0];
  std::vector<std::string> fields(1);
  for (size_t i = 1; i < size; ++i) {
    if (data[i] == 0xFE && fields.size() < 5) {
      fields.emplace_back();
    } else {
      fields.back() += static_cast<char>(data[i]);
    }
  }
  fields.resize(5);
  std::vector<std::string> stops, patterns;
  for (size_t i : {0, 1}) {
    if (!fields[i].empty()) stops.push_back(fields[i]);
  }
  for (size_t i : {2, 3}) {
    if (!fields[i].empty() && check_stop_regex(fields[i]).ok()) patterns.push_back(fields[i]);
  }
  const bool include_stop = options & 1;
  auto matcher = StopMatcher::create(stops, patterns, include_stop);
  if (!matcher.ok()) return 0;
  const std::string& text = fields[4];
  const Seen whole = stream(*matcher, text, nullptr);
  if (!text.starts_with(whole.text)) std::abort();
  if (!whole.matched && !whole.failed && whole.text != text) std::abort();
  std::mt19937 random(options);
  for (int round = 0; round < 3; ++round) {
    const Seen cut = stream(*matcher, text, &random);
    if (cut.text != whole.text || cut.matched != whole.matched || cut.failed != whole.failed) std::abort();
  }
  return 0;
}
