// Sequence: what the scheduler knows of one live request. A plain record; scheduler.cc and its siblings change it.
//
// Invariants, between two calls into the scheduler:
//   0 <= computed <= tokens.size();  tokens = prompt, then what was generated (retraction keeps both)
//   waiting: no pages, no lock, computed == 0
//   running: pages cover at least `computed` tokens; the first `shared_pages` of them belong to the tree and are locked
//            through `lock`, the rest are held by this sequence alone
// Thread safety: the scheduler's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "wire/messages.h"

namespace millrace {

struct RadixNode;

struct Sequence {
  ReqId id;
  wire::SamplingParams sampling;
  std::string extra_key;
  std::vector<int32_t> tokens;
  int32_t prompt_length = 0;
  uint64_t arrival = 0;           // the order of acceptance; never changes
  int32_t skips = 0;              // later requests admitted before this one while it waited
  std::optional<int32_t> cached;  // prompt tokens found in the prefix cache at the first admission
  int32_t priority = 0;           // larger = sooner, and cached for longer, where the policies look at it

  // KV
  uint64_t weight_version = 0;  // that the KV was computed with
  bool publishable = true;      // false: the KV is of mixed weight versions or of a failed step
  int32_t computed = 0;         // tokens whose KV is in `pages`
  std::vector<PageId> pages;
  int32_t shared_pages = 0;
  RadixNode* lock = nullptr;
  int32_t match_limit = INT32_MAX;  // tokens that may come from the cache; the others are computed, whatever is cached
  int32_t host_tokens = 0;          // of those that the last attach() found, how many came from the host tier

  bool running = false;
  int32_t rows_in_flight = 0;        // rows of the submitted batch; pages stay until it was polled
  std::optional<wire::Finish> doom;  // an end decided while in flight; carried out when the batch was polled

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t generated() const { return length() - prompt_length; }
  int32_t remaining() const { return length() - computed; }  // rows until the next token can be sampled
  bool decoding() const { return remaining() == 1; }
  wire::Usage usage() const { return {prompt_length, generated(), cached.value_or(0)}; }
};

}  // namespace millrace
