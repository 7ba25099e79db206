// Python's str.format(), the part of it that templates use: {}, {0}, {name}, {x.attribute}, {x[key]}, !r and !s, and
// the specifications of fill, alignment, sign, width, precision and the types s d f e g x X o b % and `,`.
//
// Thread safety: a free function.
#pragma once

#include "text/jinja/evaluator.h"

namespace millrace::jinja {

MarkedString brace_format(Evaluator& evaluator, const MarkedString& pattern, const Arguments& arguments);

}  // namespace millrace::jinja
