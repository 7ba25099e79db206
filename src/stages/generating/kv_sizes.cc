#include "stages/generating/kv_sizes.h"

#include <algorithm>

#include "base/log.h"
#include "base/memory_info.h"
#include "runner/kv_pages.h"

namespace millrace {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Pages that --kv-gib asks for; by default as many as the running requests can fill, within a quarter of the free
// memory.
Result<int32_t> choose_page_count(const ModelConfig& config, const ModelOptions& options, DType dtype,
                                  uint64_t reserved_bytes) {
  const LayerRange all{0, config.layers};
  const int64_t context = context_length(config, options.context_length);
  const int64_t pages_each = (context + options.page_size - 1) / options.page_size;
  const MemoryInfo memory = memory_info();
  if (options.kv_gib * kGiB > static_cast<double>(memory.total_bytes)) {
    return invalid_argument("--kv-gib is {}, and this process may have {:.1f} GiB in all; wanted less", options.kv_gib,
                            static_cast<double>(memory.total_bytes) / kGiB);
  }
  const uint64_t available = memory.available_bytes;
  const double quarter = static_cast<double>(available - std::min(available, reserved_bytes)) / 4 / options.replicas;
  const auto bytes = static_cast<uint64_t>(options.kv_gib > 0 ? options.kv_gib * kGiB : quarter);
  int64_t pages = page_count_for(config, all, options.page_size, bytes, dtype);
  if (options.kv_gib <= 0) pages = std::min(pages, pages_each * options.max_running_requests);
  if (pages < pages_each) {
    LOG_WARNING(
        "KV memory holds {} tokens, less than the context of {}: requests end there, and longer prompts are refused "
        "(--kv-gib)",
        pages * options.page_size, context);
  }
  if (pages < 1) {
    // A share of what is free now may be more at the next start.
    return error(options.kv_gib > 0 ? StatusCode::kInvalidArgument : StatusCode::kResourceExhausted,
                 "KV memory of {} bytes; wanted at least {} for one page (--kv-gib)", bytes,
                 kv_page_bytes(config, all, options.page_size, dtype));
  }
  return static_cast<int32_t>(pages);
}

// Pages of the host tier that --kv-host-gib asks for.
Result<int32_t> choose_host_page_count(const ModelConfig& config, const ModelOptions& options, DType dtype) {
  if (options.kv_host_gib <= 0) return 0;
  const LayerRange all{0, config.layers};
  const auto bytes = static_cast<uint64_t>(options.kv_host_gib * kGiB);
  const int32_t pages = page_count_for(config, all, options.page_size, bytes, dtype);
  if (pages >= 1) return pages;
  return error(StatusCode::kInvalidArgument, "host memory of {} bytes; wanted at least {} for one page (--kv-host-gib)",
               bytes, kv_page_bytes(config, all, options.page_size, dtype));
}

}  // namespace

int context_length(const ModelConfig& config, int wanted) {
  return wanted > 0 ? std::min(wanted, config.max_position_embeddings) : config.max_position_embeddings;
}

Result<RunnerOptions> runner_options(const ModelConfig& config, const ModelOptions& options, uint64_t reserved_bytes) {
  RunnerOptions out{.threads = options.threads,
                    .page_size = options.page_size,
                    .context_length = options.context_length,
                    .max_rows = options.chunked_prefill_tokens};
  ASSIGN_OR_RETURN(out.kv_dtype, kv_dtype_from_name(options.kv_dtype));
  ASSIGN_OR_RETURN(out.activations, kernels::activations_from_name(options.activations));
  ASSIGN_OR_RETURN(out.page_count, choose_page_count(config, options, out.kv_dtype, reserved_bytes));
  ASSIGN_OR_RETURN(out.host_page_count, choose_host_page_count(config, options, out.kv_dtype));
  LOG_INFO("{} KV pages of {} tokens in {}, {} in the host tier", out.page_count, options.page_size, options.kv_dtype,
           out.host_page_count);
  return out;
}

}  // namespace millrace
