#include "models/split_plan.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>

namespace millrace {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

// The layer of a tensor's name; nullopt: it is of none.
std::optional<int> layer_of(std::string_view name) {
  const std::string_view prefix = kLayerPrefix;
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int layer = -1;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (code != std::errc() || end == name.data() + name.size() || *end != '.' || layer < 0) return std::nullopt;
  return layer;
}

// Contiguous ranges of the layers with the least maximum of costs, where `first` is added to that of the first range,
// which alone may be empty. Of several the one with the least sum of squares, which is the most level one.
//
// best[s][e]: the layers [0, e) over the ranges 0..s, by the recurrence of the linear partition problem (e.g. Skiena,
// The Algorithm Design Manual, section "The Partition Problem"); once for the maximum, once for the sum of squares of
// the ranges that do not exceed it. S x L x L additions: 66 million for the most ranges and layers.
class Partition {
 public:
  Partition(std::span<const uint64_t> costs, uint64_t first, int ranges)
      : layers_(static_cast<int>(costs.size())), ranges_(ranges), first_(static_cast<double>(first)) {
    prefix_.push_back(0);
    for (const uint64_t cost : costs) prefix_.push_back(prefix_.back() + static_cast<double>(cost));
  }

  std::vector<int> counts() {
    const double limit = solve(kImpossible, [](double before, double cost) { return std::max(before, cost); });
    solve(limit, [](double before, double cost) { return before + cost * cost; });
    std::vector<int> counts(static_cast<std::size_t>(ranges_));
    for (int range = ranges_ - 1, end = layers_; range >= 0; --range) {
      const int begin = range == 0 ? 0 : begin_[at(range, end)];
      counts[static_cast<std::size_t>(range)] = end - begin;
      end = begin;
    }
    return counts;
  }

 private:
  std::size_t at(int range, int end) const {
    return static_cast<std::size_t>(range) * static_cast<std::size_t>(layers_ + 1) + static_cast<std::size_t>(end);
  }
  double sum(int begin, int end) const {
    return prefix_[static_cast<std::size_t>(end)] - prefix_[static_cast<std::size_t>(begin)];
  }

  // The least join(...) over ranges that cost at most `limit` each; begin_ gets where each of them begins.
  template <typename Join>
  double solve(double limit, Join join) {
    best_.assign(at(ranges_, 0), kImpossible);
    begin_.assign(at(ranges_, 0), 0);
    for (int end = 0; end <= layers_; ++end) {
      const double cost = first_ + sum(0, end);
      if (cost <= limit) best_[at(0, end)] = join(0.0, cost);
    }
    for (int range = 1; range < ranges_; ++range) {
      for (int end = range; end <= layers_; ++end) {
        for (int begin = range - 1; begin < end; ++begin) {
          const double before = best_[at(range - 1, begin)], cost = sum(begin, end);
          if (before == kImpossible || cost > limit) continue;
          const double joined = join(before, cost);
          if (joined > best_[at(range, end)]) continue;
          best_[at(range, end)] = joined;
          begin_[at(range, end)] = begin;
        }
      }
    }
    return best_[at(ranges_ - 1, layers_)];
  }

  const int layers_, ranges_;
  const double first_;
  std::vector<double> prefix_;  // exact below 2^53 bytes
  std::vector<double> best_;
  std::vector<int> begin_;
};

std::vector<int> even_counts(int layers, int ranges) {
  std::vector<int> counts(static_cast<std::size_t>(ranges), layers / ranges);
  for (int i = 0; i < layers % ranges; ++i) ++counts[static_cast<std::size_t>(i)];
  return counts;
}

Status check_counts(const std::vector<int>& counts, int layers, int ranges) {
  if (ranges != 0 && static_cast<std::size_t>(ranges) != counts.size()) {
    return invalid_argument("the split has {} counts of layers; wanted {}, one for each range", counts.size(), ranges);
  }
  for (std::size_t i = 1; i < counts.size(); ++i) {
    if (counts[i] == 0) return invalid_argument("range {} of the split has 0 layers; wanted 1 or more", i);
  }
  if (const int sum = std::accumulate(counts.begin(), counts.end(), 0); sum != layers) {
    return invalid_argument("the split has {} layers in all; wanted {}, those of the model", sum, layers);
  }
  return ok_status();
}

std::vector<int> least_maximum(const ModelSizes& sizes, SplitRule::Kind kind, int ranges, uint64_t kv_layer_bytes) {
  const bool held = kind == SplitRule::Kind::kMemory;
  std::vector<uint64_t> costs;
  for (const ModelSizes::Part& layer : sizes.layers) costs.push_back(held ? layer.bytes + kv_layer_bytes : layer.read);
  return Partition(costs, held ? sizes.first.bytes : sizes.first.read, ranges).counts();
}

}  // namespace

ModelSizes model_sizes(const ModelConfig& config, const WeightStore& store) {
  ModelSizes sizes;
  sizes.layers.resize(static_cast<std::size_t>(config.layers));
  std::vector<uint64_t> experts(sizes.layers.size());  // bytes of all experts of each layer
  for (const std::string& name : store.names()) {
    const SafetensorsEntry& entry = *store.find(name);
    const uint64_t bytes = entry.end - entry.begin;
    if (name == kEmbeddingName) {
      const bool is_head = config.tie_word_embeddings;
      sizes.first.bytes += bytes;
      sizes.first.read += is_head ? bytes : bytes / static_cast<uint64_t>(config.vocab_size);
    } else if (name == kFinalNormName || (name == kHeadName && !config.tie_word_embeddings)) {
      sizes.first.bytes += bytes;
      sizes.first.read += bytes;
    }
    const std::optional<int> layer = layer_of(name);
    if (!layer || *layer >= config.layers || name.ends_with(".rotary_emb.inv_freq")) continue;
    ModelSizes::Part& part = sizes.layers[static_cast<std::size_t>(*layer)];
    part.bytes += bytes;
    const bool of_expert = config.has_experts(*layer) && name.find(".mlp.experts.") != std::string::npos;
    (of_expert ? experts[static_cast<std::size_t>(*layer)] : part.read) += bytes;
  }
  for (std::size_t i = 0; i < experts.size() && config.num_experts > 0; ++i) {
    sizes.layers[i].read +=
        experts[i] * static_cast<uint64_t>(config.experts_per_token) / static_cast<uint64_t>(config.num_experts);
  }
  return sizes;
}

Result<SplitRule> parse_split_rule(std::string_view text) {
  using Kind = SplitRule::Kind;
  SplitRule rule;
  if (text == "even" || text == "balanced" || text == "memory") {
    rule.kind = text == "even" ? Kind::kEven : text == "balanced" ? Kind::kBalanced : Kind::kMemory;
    return rule;
  }
  const Status wrong = invalid_argument(
      "the split is '{}'; wanted even, balanced, memory, or the layers of each range, such as 19,9", text);
  rule.kind = Kind::kCounts;
  for (const char *next = text.data(), *end = text.data() + text.size();; ++next) {
    int count = -1;
    const auto [after, code] = std::from_chars(next, end, count);
    if (code != std::errc() || count < 0 || count > kMaxLayers || rule.counts.size() >= kMaxRanges) return wrong;
    rule.counts.push_back(count);
    next = after;
    if (next == end) return rule;
    if (*next != ',') return wrong;
  }
}

Result<SplitPlan> plan_split(const ModelSizes& sizes, const SplitRule& rule, int ranges, uint64_t kv_layer_token_bytes,
                             int64_t kv_tokens) {
  const auto layers = static_cast<int>(sizes.layers.size());
  if (kv_tokens < 1 || kv_tokens > kMaxSplitKvTokens) {
    return invalid_argument("the split is for the KV of {} tokens; wanted 1 to {}", kv_tokens, kMaxSplitKvTokens);
  }
  std::vector<int> counts = rule.counts;
  if (rule.kind == SplitRule::Kind::kCounts) {
    RETURN_IF_ERROR(check_counts(counts, layers, ranges));
  } else if (const int most = std::min(layers, kMaxRanges); ranges < 1 || ranges > most) {
    return invalid_argument("the split has {} ranges; wanted 1 to {} for a model of {} layers", ranges, most, layers);
  } else if (rule.kind == SplitRule::Kind::kEven) {
    counts = even_counts(layers, ranges);
  } else {
    counts = least_maximum(sizes, rule.kind, ranges, kv_layer_token_bytes * static_cast<uint64_t>(kv_tokens));
  }

  SplitPlan plan;
  plan.kv_tokens = kv_tokens;
  int begin = 0;
  for (const int count : counts) {
    SplitPlan::Range& range = plan.ranges.emplace_back();
    range.layers = {begin, begin + count};
    if (plan.ranges.size() == 1) {
      range.weight_bytes = sizes.first.bytes;
      range.decode_bytes = sizes.first.read;
    }
    for (; begin < range.layers.end; ++begin) {
      range.weight_bytes += sizes.layers[static_cast<std::size_t>(begin)].bytes;
      range.decode_bytes += sizes.layers[static_cast<std::size_t>(begin)].read;
    }
    range.kv_token_bytes = kv_layer_token_bytes * static_cast<uint64_t>(count);
    range.kv_bytes = range.kv_token_bytes * static_cast<uint64_t>(kv_tokens);
  }
  return plan;
}

}  // namespace millrace
