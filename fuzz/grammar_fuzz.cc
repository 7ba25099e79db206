// Any text as a regular expression, an EBNF grammar, a JSON Schema and structural tags: refused, or a grammar in which
// a random text ends or dies. The first byte chooses the language, the last 16 are read by the grammar.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grammar/ebnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "grammar/state_table.h"
#include "grammar/structural_tag.h"

namespace {

using namespace millrace;
using namespace millrace::grammar;

Result<Rules> parse(uint8_t language, std::string_view source) {
  if (language % 4 == 0) return parse_ebnf(source);
  if (language % 4 == 1) return parse_json_schema(source);
  if (language % 4 == 2) return parse_structural_tag(source, {"<a>", "</a>"}, static_cast<TextStart>(language / 4 % 3));
  const auto write = [](const CharSet& set) { return chars(set); };
  const auto body = parse_regex(source, language & 16 ? RegexMatch::kFull : RegexMatch::kAnywhere, write);
  if (!body.ok()) return body.status();
  return Rules{{*body}, {"pattern"}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size < 17) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto rules = parse(data[0], text.substr(1, size - 17));
  if (!rules.ok()) return 0;
  const auto grammar = Grammar::compile(*rules);
  if (!grammar.ok()) return 0;
  StateTable states(*grammar);
  states.step(states.start(), text.substr(size - 16));
  return 0;
}
