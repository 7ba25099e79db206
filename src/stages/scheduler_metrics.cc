#include "stages/scheduler_metrics.h"

namespace millrace {

std::vector<wire::Metric> metrics_of(const SchedulerFacts& f) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  const auto seconds = [](uint64_t us) { return static_cast<double>(us) * 1e-6; };
  const auto rate = [](uint64_t part, uint64_t total) {
    return total == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(total);
  };
  return {
      // Requests.
      {"num_accepted_requests_total", number(f.accepted)},
      {"num_rejected_requests_total", number(f.rejected)},
      {"num_ended_requests_total", number(f.ended)},
      {"num_failed_requests_total", number(f.failed)},
      {"num_deadline_requests_total", number(f.deadline)},
      {"num_dropped_requests_total", number(f.dropped)},
      {"num_admitted_requests_total", number(f.admitted)},
      {"num_retracted_requests_total", number(f.retractions)},
      {"num_preempted_requests_total", number(f.preempted)},
      {"num_deferred_requests_total", number(f.deferred)},
      {"admission_wait_seconds_total", seconds(f.queue_us)},
      // Tokens.
      {"admitted_prompt_tokens_total", number(f.prompt_tokens)},
      {"prefix_cache_hit_tokens_total", number(f.cached_tokens)},
      {"cache_hit_rate", rate(f.cached_tokens, f.prompt_tokens)},
      {"load_back_tokens_total", number(f.host_tokens)},
      {"evicted_tokens_total", number(f.evicted_tokens)},
      {"sampled_tokens_total", number(f.generated_tokens)},
      {"forced_run_tokens_total", number(f.forced_run_tokens)},
      {"prefill_rows_total", number(f.prefill_rows)},
      {"decode_rows_total", number(f.decode_rows)},
      {"wasted_rows_total", number(f.wasted_rows)},
      {"new_token_ratio", f.new_token_ratio},
      // Memory.
      {"kv_held_tokens", number(f.pages_held) * f.page_size},
      {"hicache_host_total_tokens", number(f.host_pages_total) * f.page_size},
      {"hicache_host_used_tokens", number(f.host_pages_used) * f.page_size},
      {"kv_losses_total", number(f.kv_losses)},
      {"kv_imported_tokens_total", number(f.imported_tokens)},
      {"kv_exported_tokens_total", number(f.exported_tokens)},
      {"kv_leases", number(f.leases)},
      {"kv_leases_revoked_total", number(f.revoked_leases)},
      {"book_rebuilds_total", number(f.book_rebuilds)},
      // Steps.
      {"forward_execution_seconds_total", seconds(f.compute_us)},
      {"engine_idle_seconds_total", seconds(f.idle_us)},
      {"utilization", rate(f.compute_us, f.compute_us + f.idle_us)},
      {"overlap_bubbles_total", number(f.bubbles)},
  };
}

}  // namespace millrace
