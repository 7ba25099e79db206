#include "app/inspect_split.h"

#include <array>
#include <cstdio>

#include "app/units.h"
#include "runner/kv_pages.h"

namespace millrace {
namespace {

using Cells = std::array<std::string, 6>;

void print_cells(const Cells& cells) {
  std::printf("  %-6s %-12s %-24s %-24s %-22s %s\n", cells[0].c_str(), cells[1].c_str(), cells[2].c_str(),
              cells[3].c_str(), cells[4].c_str(), cells[5].c_str());
}

std::string exact(uint64_t bytes) {
  return bytes < 1000 ? std::to_string(bytes) : fmt::format("{} ({})", bytes, bytes_text(bytes));
}

Cells cells_of(const std::string& name, const std::string& layers, const SplitPlan::Range& range) {
  return {name,
          layers,
          exact(range.weight_bytes),
          exact(range.decode_bytes),
          exact(range.kv_token_bytes),
          exact(range.kv_bytes)};
}

std::string rule_of(const InspectOptions& options) { return options.split.value_or("even"); }
std::string kv_dtype_of(const InspectOptions& options) { return options.kv_dtype.value_or("f32"); }

// For messages.
std::string given_of(const InspectOptions& options) {
  std::string text = "--split " + rule_of(options);
  if (options.pp) text += fmt::format(" --pp {}", *options.pp);
  if (options.kv_tokens) text += fmt::format(" --kv-tokens {}", *options.kv_tokens);
  return text;
}

// The options of a split where there is none to show.
Status check_no_split(const InspectOptions& options) {
  if (options.split)
    return invalid_argument("--split is {} and --pp is missing; wanted --pp with the number of ranges", *options.split);
  if (options.kv_tokens) return invalid_argument("--kv-tokens is for a split; wanted --pp too");
  if (options.kv_dtype) return invalid_argument("--kv-dtype is for a split; wanted --pp too");
  return ok_status();
}

}  // namespace

Result<std::optional<SplitPlan>> split_of(const InspectOptions& options, const ModelConfig& config,
                                          const WeightStore& store) {
  const std::string text = rule_of(options);
  const auto rule = parse_split_rule(text);
  if (!rule.ok()) return rule.status().with_prefix("--split");
  if (!options.pp && rule->kind != SplitRule::Kind::kCounts) {
    RETURN_IF_ERROR(check_no_split(options));
    return std::optional<SplitPlan>();
  }
  if (options.pp && *options.pp < 1) return invalid_argument("--pp is {}; wanted 1 or more", *options.pp);
  ASSIGN_OR_RETURN(const DType dtype, kv_dtype_from_name(kv_dtype_of(options)));
  const auto kv_layer_token_bytes = static_cast<uint64_t>(kv_page_bytes(config, {0, 1}, 1, dtype));
  const int64_t kv_tokens = options.kv_tokens.value_or(config.max_position_embeddings);
  auto plan = plan_split(model_sizes(config, store), *rule, options.pp.value_or(0), kv_layer_token_bytes, kv_tokens);
  if (!plan.ok()) return plan.status().with_prefix(given_of(options));
  return std::optional<SplitPlan>(std::move(*plan));
}

void print_split(const InspectOptions& options, const SplitPlan& plan) {
  std::printf("\nsplit %s: %zu range%s, KV as %s\n", rule_of(options).c_str(), plan.ranges.size(),
              plan.ranges.size() == 1 ? "" : "s", kv_dtype_of(options).c_str());
  print_cells({"range", "layers", "weight bytes", "read by a decode step", "KV of a token",
               fmt::format("KV of {} tokens", plan.kv_tokens)});
  SplitPlan::Range all;
  for (std::size_t i = 0; i < plan.ranges.size(); ++i) {
    const SplitPlan::Range& range = plan.ranges[i];
    print_cells(cells_of(std::to_string(i), fmt::format("[{}, {})", range.layers.begin, range.layers.end), range));
    all.layers.end = range.layers.end;
    all.weight_bytes += range.weight_bytes;
    all.decode_bytes += range.decode_bytes;
    all.kv_token_bytes += range.kv_token_bytes;
    all.kv_bytes += range.kv_bytes;
  }
  print_cells(cells_of("all", std::to_string(all.layers.end), all));
}

}  // namespace millrace
