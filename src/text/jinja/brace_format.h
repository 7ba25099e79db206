// Python's str.format(), the part of it that templates use: {}, {0}, {name}, {x.attribute}, {x[key]}, !r, !s and !a,
// and the specifications of fill, alignment, sign, #, 0, width, `,`, precision and the types s c d b o x X e E f F g G
// and %. Results and errors are those of Python 3.11.
//
// Thread safety: a free function.
#pragma once

#include "text/jinja/evaluator.h"

namespace millrace::jinja {

MarkedString brace_format(Evaluator& evaluator, const MarkedString& pattern, const Arguments& arguments);

}  // namespace millrace::jinja
