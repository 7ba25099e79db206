// <fmt/format.h>, whose engine the library has compiled already. Version 9 does not declare that, so that every unit which
// formats into a buffer of its own would translate all of it again: two to three seconds of each.
#pragma once

#include <fmt/format.h>

#if FMT_VERSION >= 90000 && FMT_VERSION < 100000 && !defined(FMT_HEADER_ONLY)
FMT_BEGIN_NAMESPACE
namespace detail {
extern template void vformat_to<char>(buffer<char>&, basic_string_view<char>,
                                      basic_format_args<basic_format_context<appender, char>>, locale_ref);
}
FMT_END_NAMESPACE
#endif
