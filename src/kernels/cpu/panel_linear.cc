#include "kernels/cpu/panel_linear.h"

#include <algorithm>

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/cpu_info.h"
#include "kernels/cpu/packed.h"
#include "kernels/cpu/prefetch_distance.h"

namespace millrace::kernels {
namespace {

// Below these amounts of work a loop runs on the calling thread: waking a sleeping thread costs some microseconds.
constexpr int64_t kInlineProducts = 128 * 1024;
constexpr int64_t kInlineElements = 16 * 1024;
// Of weights in a part: long, because a new part begins where nothing was asked for ahead; but so many parts to a
// thread.
constexpr int64_t kPartBytes = 256 * 1024;
constexpr int64_t kPartsPerThread = 4;
// Panels of a part where many rows share them: together with the rows in work they fit a level-2 cache.
constexpr int64_t kPartPanels = 4;
constexpr int64_t kFewRows = 32;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

void grow(Buffer& buffer, int64_t bytes) {
  if (buffer.size_bytes() < static_cast<std::size_t>(bytes)) buffer = Buffer(static_cast<std::size_t>(bytes));
}

PanelActivations lay_out(PanelKind kind, int64_t rows, int64_t tile_rows, int64_t blocks, Buffer& buffer) {
  const int64_t terms = kPanelFormats[static_cast<int>(kind)].terms;
  grow(buffer, rows * blocks * (kPanelBlock + 4 + 4 * terms));
  PanelActivations x{};
  x.q = reinterpret_cast<int8_t*>(buffer.data());
  x.d = reinterpret_cast<float*>(x.q + rows * blocks * kPanelBlock);
  x.terms = reinterpret_cast<int32_t*>(x.d + rows * blocks);
  x.tile_rows = tile_rows;
  return x;
}

#if defined(__x86_64__)
// Linux gives tile registers to a process that asks for them (Documentation/arch/x86/xstate.rst); asking twice is fine.
bool ask_for_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool given = cpu_info().amx_int8 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return given;
}
#endif

}  // namespace

const PanelTable& panel_table(std::string_view isa) {
#if defined(__x86_64__)
  const bool vnni = cpu_info().avx512_vnni;
  if (isa == "amx" && vnni && ask_for_tiles()) return kAmxPanels;
  if ((isa == "amx" || isa == "avx512") && vnni) return kAvx512Panels;
  if (isa != "generic") return cpu_info().avx_vnni ? kAvxVnniPanels : kAvx2Panels;
#endif
  (void)isa;
  return kGenericPanels;
}

PanelLinear::PanelLinear(const PanelTable& table, ThreadPool& pool)
    : table_(table),
      pool_(pool),
      made_(static_cast<std::size_t>(pool.size())),
      scratch_(static_cast<std::size_t>(pool.size())) {}

void PanelLinear::quantize(PanelKind kind, const PanelActivations& to, int64_t blocks, const CpuInput& x) {
  const int64_t terms = kPanelFormats[static_cast<int>(kind)].terms;
  const int64_t grain = std::max<int64_t>(1, kInlineElements / std::max<int64_t>(x.width(), 1));
  pool_.parallel_for(x.count(), grain, [&](int64_t begin, int64_t end, int worker) {
    float* space = reinterpret_cast<float*>(made_[static_cast<std::size_t>(worker)].data());
    for (int64_t r = begin; r < end; ++r) {
      const int64_t in_tile = r % to.tile_rows;
      const int64_t first = r - in_tile, rows = std::min(to.tile_rows, x.count() - first);
      table_.quantize(kind, x.row(r, space), blocks, rows, to.q + first * blocks * kPanelBlock + in_tile * kPanelBlock,
                      to.d + first * blocks + in_tile, to.terms + first * blocks * terms + in_tile);
    }
  });
}

void PanelLinear::run(const CpuInput& x, std::span<const CpuProduct> products) {
  CHECK(!products.empty() && products.size() <= kMaxProducts);
  const int64_t blocks = x.width() / kPanelBlock;
  for (Buffer& scratch : scratch_) grow(scratch, kPanelScratch + table_.scratch_bytes_per_block * blocks);
  if (!x.as_it_is()) {
    for (Buffer& made : made_) grow(made, x.width() * static_cast<int64_t>(sizeof(float)));
  }
  for (int64_t first = 0; first < x.count(); first += kPanelRowsAtOnce) run_rows(x, products, first);
}

// The rows from `first`, kPanelRowsAtOnce of them at most.
void PanelLinear::run_rows(const CpuInput& x, std::span<const CpuProduct> products, int64_t first) {
  const Weight& weight = *products.front().weight;
  CHECK(weight.layout == WeightLayout::kPanels);
  PanelPart all{};
  all.prefetch_bytes = prefetch_distance().quantized_bytes;
  all.kind = panel_kind(weight.dtype());
  all.panel_bytes = panel_bytes(weight.dtype(), x.width());
  all.blocks = x.width() / kPanelBlock;
  all.rows = std::min(kPanelRowsAtOnce, x.count() - first);
  all.x = lay_out(all.kind, all.rows, table_.tile_rows(all.kind, all.rows), all.blocks, rows_);
  quantize(all.kind, all.x, all.blocks, x.slice(first, all.rows));
  // Their panels, one product behind the other.
  int64_t ends[kMaxProducts], panels = 0, columns = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    ends[i] = panels += divide_up(products[i].y.width, kPanelRows);
    columns += products[i].y.width;
  }
  int64_t grain = kPartPanels;
  if (all.rows <= kFewRows) {
    const int64_t most = kPartBytes / std::max<int64_t>(all.panel_bytes, 1);
    grain = std::max<int64_t>(1, std::min(most, panels / (kPartsPerThread * pool_.size())));
  }
  if (all.rows * x.width() * columns < kInlineProducts) grain = panels;
  pool_.parallel_for(panels, grain, [&](int64_t begin, int64_t end, int worker) {
    PanelPart part = all;
    part.scratch = reinterpret_cast<uint8_t*>(scratch_[static_cast<std::size_t>(worker)].data());
    for (std::size_t i = 0; i < products.size() && begin < end; ++i) {
      if (begin >= ends[i]) continue;
      const CpuProduct& product = products[i];
      const int64_t base = i > 0 ? ends[i - 1] : 0, stop = std::min(end, ends[i]);
      part.panels = reinterpret_cast<const uint8_t*>(product.weight->packed->data());
      part.columns = product.y.width;
      part.bias = product.bias;
      part.y = product.y.row(first);
      part.y_stride = product.y.stride;
      part.accumulate = product.accumulate;
      part.panel_begin = begin - base;
      part.panel_end = stop - base;
      table_.multiply(part);
      begin = stop;
    }
  });
}

void PanelLinear::embedding(const Weight& weight, std::span<const int32_t> ids, Rows y) {
  CHECK(weight.layout == WeightLayout::kPanels);
  const int64_t grain = std::max<int64_t>(1, kInlineElements / std::max<int64_t>(y.width, 1));
  pool_.parallel_for(y.count, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) unpack_panel_row(weight, ids[static_cast<std::size_t>(r)], y.row(r));
  });
}

}  // namespace millrace::kernels
