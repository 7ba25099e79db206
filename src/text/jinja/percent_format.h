// Python's `text % values`, the part of it that templates use: %s %r %d %i %f %e %g %x %o %c %% with flags, width,
// precision.
//
// Thread safety: a free function.
#pragma once

#include "text/jinja/value.h"

namespace millrace::jinja {

// `values`: a tuple, a dict for %(name)s, or one value. Strings keep their marks, the pattern its own.
MarkedString percent_format(const MarkedString& pattern, const Value& values, Budget& budget);

}  // namespace millrace::jinja
