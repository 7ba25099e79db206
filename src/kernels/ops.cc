// The choice of an implementation at run time.
#include "kernels/ops.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/cpu_info.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/packed.h"
#include "kernels/cpu/tiles.h"
#include "kernels/half.h"
#include "kernels/quantized.h"
#include "kernels/ref/ref_ops.h"

namespace millrace::kernels {

Result<Weight> pack_weight(Isa isa, const TensorView& source, ThreadPool& pool, std::optional<DType> quantize,
                           const RowsDone& rows_done) {
  if (quantize) {
    RETURN_IF_ERROR(check_quantizable(source, *quantize));
    if (isa != Isa::kRef) return pack_panels(source, pool, quantize, rows_done);
    ASSIGN_OR_RETURN(Buffer blocks, kernels::quantize(source, *quantize, pool));
    Weight weight(TensorView{.data = blocks.data(), .dtype = *quantize, .shape = source.shape});
    weight.packed = std::make_shared<const Buffer>(std::move(blocks));
    return weight;
  }
  if (!is_quantized(source.dtype)) {
    if (!is_weight_dtype(source.dtype)) {
      return error(StatusCode::kUnsupported, "weights of dtype {}; wanted F32, F16, BF16 or a quantized type",
                   dtype_name(source.dtype));
    }
    return isa == Isa::kRef || source.shape.elements() == 0 ? Weight(source) : pack_tiles(source, pool, rows_done);
  }
  if (isa != Isa::kRef) return pack_panels(source, pool, {}, rows_done);
  const int64_t elements = dtype_block(source.dtype).elements;
  if (source.shape[1] % elements == 0) return Weight(source);
  return invalid_argument("rows of {} elements of {}; wanted a multiple of {}", source.shape[1],
                          dtype_name(source.dtype), elements);
}

std::span<const std::byte> packed_bytes(const Weight& weight) {
  if (weight.packed == nullptr) return {};
  if (weight.layout == WeightLayout::kTiles) return tiles_span(weight);
  return {weight.packed->data(), weight.packed->size_bytes()};
}

Result<Weight> restore_weight(Isa isa, DType dtype, const Shape& shape,
                              FunctionRef<Status(std::span<std::byte> bytes)> fill) {
  CHECK(isa != Isa::kRef && shape.rank() == 2 && (is_quantized(dtype) || is_weight_dtype(dtype)));
  std::span<std::byte> bytes;
  Weight weight;
  if (is_quantized(dtype)) {
    ASSIGN_OR_RETURN(weight, empty_panels(dtype, shape, bytes));
  } else {
    weight = empty_tiles(dtype, shape, bytes);
  }
  RETURN_IF_ERROR(fill(bytes));
  return weight;
}

std::string_view activations_name(Activations activations) {
  return activations == Activations::kBF16 ? "bf16" : "f32";
}

Result<Activations> activations_from_name(std::string_view name) {
  for (const Activations activations : {Activations::kF32, Activations::kBF16}) {
    if (name == activations_name(activations)) return activations;
  }
  return invalid_argument("activations are '{}'; wanted f32 or bf16", name);
}

std::string arithmetic_name(Isa isa, Activations activations) {
  if (activations == Activations::kF32) return std::string(isa_name(isa));
  return fmt::format("{} with {} activations", isa_name(isa), activations_name(activations));
}

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kRef:
      return "ref";
    case Isa::kGeneric:
      return "generic";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

#if defined(__x86_64__)
namespace {

// Linux saves the tile registers (8 KiB a thread) only for processes that asked for them; threads inherit it.
bool tiles_permitted() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // the state component of the tiles
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}

}  // namespace
#endif

bool isa_available(Isa isa) {
  if (isa == Isa::kRef || isa == Isa::kGeneric) return true;
#if defined(__x86_64__)
  const CpuInfo& cpu = cpu_info();
  if (!(cpu.avx2 && cpu.fma && cpu.f16c)) return false;
  if (isa == Isa::kAvx2) return true;
  if (!(cpu.avx512f && cpu.avx512bw && cpu.avx512vl && cpu.avx512dq)) return false;
  if (isa == Isa::kAvx512) return true;
  return cpu.avx512_bf16 && cpu.amx_bf16 && tiles_permitted();
#else
  return false;
#endif
}

Result<Isa> resolve_isa() {
  const char* forced = std::getenv("MILLRACE_ISA");
  if (forced != nullptr && *forced != '\0') {
    std::string names;
    for (Isa isa : kAllIsas) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", isa_name(isa));
      if (isa_name(isa) != forced) continue;
      if (isa_available(isa)) return isa;
      return error(StatusCode::kUnsupported, "MILLRACE_ISA is '{}', which this processor ({}) cannot run", forced,
                   cpu_info().brand);
    }
    return invalid_argument("MILLRACE_ISA is '{}'; wanted one of {}", forced, names);
  }
  Isa best = Isa::kGeneric;
  for (Isa isa : kAllIsas) {
    if (isa_available(isa)) best = isa;
  }
  return best;
}

namespace {

constexpr auto kBF16 = static_cast<std::size_t>(WeightKind::kBF16);

// amx is avx512 but for products with bf16 weights.
KernelTable kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return kAvx2Kernels;
  if (isa == Isa::kAvx512 || isa == Isa::kAmx) {
    KernelTable table = kAvx512Kernels;
    if (cpu_info().avx512_bf16) table.rounded = &kAvx512Bf16LinearKernels;
    if (isa == Isa::kAmx) table.linear[kBF16] = &kAmxLinearKernels, table.rounded = &kAmxRoundedLinearKernels;
    return table;
  }
#endif
  CHECK(isa == Isa::kGeneric);
  return kGenericKernels;
}

}  // namespace

std::unique_ptr<Ops> make_ops(Isa isa, ThreadPool& pool, Activations activations) {
  CHECK(isa_available(isa));
  if (isa == Isa::kRef) return make_ref_ops(activations);
  KernelTable table = kernels_of(isa);
  if (activations == Activations::kBF16) table.linear[kBF16] = table.rounded;
  return make_cpu_ops(isa_name(isa), table, pool);
}

Result<std::unique_ptr<Ops>> make_ops(ThreadPool& pool) {
  ASSIGN_OR_RETURN(const Isa isa, resolve_isa());
  return make_ops(isa, pool);
}

}  // namespace millrace::kernels
