// Speed of the radix cache's books, no KV bytes moved. A name is what is timed / tokens of a request / cached tokens /
// depth of the tree; the pages hold 16 tokens. What to look for: per_token is about the same in every row of one
// length, because the cost of a request grows with its length and not with what is cached. What is left of a growth is
// the memory's: a cache of 4M tokens does not fit where one of 64k does. `comparisons`, those of the eviction orders
// for one request, do not depend on the machine. Usage: radix_bench --benchmark_filter=turn
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "kv/radix_cache.h"

namespace millrace {
namespace {

constexpr int32_t kPageSize = 16;
constexpr int kTexts = 16;  // they come again and again; few enough to stay cached in the smallest cache

// Requests of `length` tokens in `depth` parts. Each follows one of a few trunks for a random number of parts, all but
// the last at most, and goes its own way from there. So a trunk is cut into up to `depth` nodes.
class Requests {
 public:
  Requests(int32_t length, int32_t depth) : length_(length), depth_(depth), random_(7) {}

  std::vector<int32_t> next() {
    std::vector<int32_t> tokens(static_cast<std::size_t>(length_));
    const auto trunk = static_cast<int32_t>(random_() % kTrunks);
    const auto shared = static_cast<int32_t>(random_() % static_cast<uint32_t>(depth_)) * (length_ / depth_);
    const auto own = static_cast<int32_t>(random_() >> 1);
    for (int32_t i = 0; i < length_; ++i) {
      tokens[static_cast<std::size_t>(i)] = ((i < shared ? trunk : own) + i * kTrunks) & 0x7fffffff;
    }
    return tokens;
  }

 private:
  static constexpr int32_t kTrunks = 8;
  int32_t length_;
  int32_t depth_;
  std::mt19937 random_;
};

class Full {
 public:
  Full(int32_t cached_tokens, int32_t length, int32_t depth)
      : pool_(cached_tokens / kPageSize), cache_(pool_, kPageSize), requests_(length, depth) {
    while (pool_.free_count() >= length / kPageSize) turn(requests_.next());
  }

  // What one request costs: match, lock, make room, insert, unlock.
  int32_t turn(const std::vector<int32_t>& tokens) {
    const MatchResult match = cache_.match_prefix({}, tokens);
    cache_.lock(match.node);
    std::vector<PageId> pages = match.pages;
    const auto known = static_cast<int32_t>(pages.size());
    const int32_t lacking = static_cast<int32_t>(tokens.size()) / kPageSize - known;
    if (lacking > pool_.free_count()) cache_.evict(lacking - pool_.free_count());
    if (!pool_.allocate(lacking, pages)) std::abort();
    const auto first = static_cast<std::size_t>(known);
    const InsertResult inserted = cache_.insert({}, std::span(tokens).subspan(first * kPageSize),
                                                std::span(pages).subspan(first), {.below = match.node});
    for (PageId page : inserted.duplicates) {
      if (!pool_.release(page, PageState::kHeld).ok()) std::abort();
    }
    cache_.unlock(match.node);
    return known;
  }

  // Nodes on the way of a request, on average.
  double path_nodes(const std::vector<std::vector<int32_t>>& texts) {
    int nodes = 0;
    for (const std::vector<int32_t>& tokens : texts) {
      for (const RadixNode* node = cache_.match_prefix({}, tokens).node; node != nullptr; node = node->parent) ++nodes;
    }
    return static_cast<double>(nodes) / static_cast<double>(texts.size()) - 1;  // without the root
  }

  PagePool pool_;
  RadixCache cache_;
  Requests requests_;
};

void set_rates(benchmark::State& state, double tokens) {
  state.SetItemsProcessed(state.iterations());
  state.counters["per_token"] = benchmark::Counter(tokens, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// Match, insert and evict: the pool is full, so every new page pushes an old one out.
void turn(benchmark::State& state, int32_t length, int32_t cached, int32_t depth) {
  Full full(cached, length, depth);
  std::vector<std::vector<int32_t>> texts;
  for (int i = 0; i < kTexts; ++i) texts.push_back(full.requests_.next());
  double matched = 0;
  std::size_t next = 0;
  const uint64_t compared = full.cache_.eviction_comparisons();
  for (auto _ : state) {
    // After one round all texts have been seen: another last quarter makes each a new one.
    std::vector<int32_t>& tokens = texts[next++ % texts.size()];
    for (std::size_t i = tokens.size() * 3 / 4; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>((next * 7919 + i) & 0x7fffffff);
    matched += full.turn(tokens) * kPageSize;
  }
  set_rates(state, static_cast<double>(state.iterations()) * length);
  state.counters["matched"] = matched / static_cast<double>(state.iterations()) / length;
  state.counters["nodes"] = full.cache_.node_count();
  state.counters["path"] = full.path_nodes(texts);
  state.counters["comparisons"] =
      static_cast<double>(full.cache_.eviction_comparisons() - compared) / static_cast<double>(state.iterations());
}

// A match alone, of what is cached.
void match(benchmark::State& state, int32_t length, int32_t cached, int32_t depth) {
  Full full(cached, length, depth);
  std::vector<std::vector<int32_t>> texts;
  for (int i = 0; i < kTexts; ++i) {
    texts.push_back(full.requests_.next());
    full.turn(texts.back());
  }
  double matched = 0;
  std::size_t next = 0;
  for (auto _ : state) {
    matched += static_cast<double>(full.cache_.match_prefix({}, texts[next++ % texts.size()]).pages.size()) * kPageSize;
  }
  set_rates(state, matched);
}

void evict(benchmark::State& state, int32_t length, int32_t cached, int32_t depth) {
  Full full(cached, length, depth);
  for (auto _ : state) {
    if (full.cache_.evict(length / kPageSize) == 0) {
      state.PauseTiming();
      full.cache_.drop_unlocked();
      while (full.pool_.free_count() >= length / kPageSize) full.turn(full.requests_.next());
      state.ResumeTiming();
    }
  }
  set_rates(state, static_cast<double>(state.iterations()) * length);
}

void add(const char* name, void (*function)(benchmark::State&, int32_t, int32_t, int32_t), int32_t length,
         int32_t cached, int32_t depth) {
  const std::string label =
      std::string(name) + "/" + std::to_string(length) + "/" + std::to_string(cached) + "/" + std::to_string(depth);
  benchmark::RegisterBenchmark(label.c_str(), function, length, cached, depth)->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using namespace millrace;
  constexpr int32_t kMillion = 1 << 20;
  for (int32_t depth : {1, 2, 4, 8, 16, 32, 64}) add("turn", turn, 2048, kMillion, depth);
  for (int32_t cached : {kMillion / 16, kMillion / 4, 4 * kMillion}) add("turn", turn, 2048, cached, 8);
  for (int32_t length : {256, 1024, 4096, 16384}) add("turn", turn, length, kMillion, 8);
  for (int32_t depth : {1, 16, 64}) add("match", match, 2048, kMillion, depth);
  for (int32_t depth : {1, 64}) add("evict", evict, 2048, kMillion, depth);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
