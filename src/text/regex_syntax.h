// From Oniguruma's Ruby syntax, which tokenizer.json uses, to PCRE2's.
//
// Thread safety: a free function without state.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

// `pattern` is valid UTF-8. Rewrites what the two engines read differently; kUnsupported names a construct that has no
// equivalent (nested sets, && intersections, \b, \W inside a set, intervals followed by +).
Result<std::string> translate_oniguruma(std::string_view pattern);

}  // namespace millrace
