// WeightTable: the weights of one model by the names of its Hugging Face folder, in the form in which they serve. A
// load fills it from files; a live update makes another one of received tensors and of this one's, which costs those
// nothing.
//
// Owner: shared by the models that serve from it. Thread safety: one thread fills it; constant after that, and any
// reads.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/weights.h"
#include "kernels/weight.h"

namespace millrace {

class WeightTable {
 public:
  struct Entry {
    kernels::Weight weight;             // a vector has one dimension, and is plain
    bool packs = false;                 // a matrix that is quantized and packed as the load's options want it
    std::shared_ptr<const void> owner;  // of the bytes behind a plain weight
    DType source = DType::kF32;         // as it came, before it was quantized
    std::optional<uint64_t> checksum;   // of its bytes as they came; none: they were not read
  };

  // nullptr: no such tensor. Valid while the table lives and is not filled any more.
  const Entry* find(std::string_view name) const {
    const auto at = entries_.find(name);
    return at == entries_.end() ? nullptr : &at->second;
  }
  void put(std::string_view name, Entry entry) { entries_.insert_or_assign(std::string(name), std::move(entry)); }
  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  // That of a WeightStore with the same tensors; 0: nothing was summed.
  uint64_t checksum() const {
    std::vector<TensorChecksum> tensors;
    for (const auto& [name, entry] : entries_) {
      if (entry.checksum) tensors.push_back({name, entry.source, entry.weight.view.shape, *entry.checksum});
    }
    return combined_checksum(tensors);
  }

 private:
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace millrace
