// The kernels of panels_avxvnni.cc in the encoding of AVX-512 VL and VNNI: processors without AVX-VNNI run the same
// code in tests. Thread safety: as panel_table.h.
#pragma once

#include "kernels/cpu/panel_table.h"

namespace millrace::kernels::testing {

#if defined(__x86_64__)
extern const PanelTable kEvex256Panels;
#endif

}  // namespace millrace::kernels::testing
