// The workers and rules that pipelines of this program may name. Thread safety: free function.
#pragma once

#include "stages/library.h"

namespace millrace {

Library make_library();

}  // namespace millrace
