// WeightInspector: shows the weights that serve: names and shapes, values of one tensor, checksums, and whether they
// are those of an earlier moment.
//
// A request and its answer are JSON:
//   {"what": "tensors"}                           [{"name", "dtype", "shape"}]
//   {"what": "values", "name", "rows"}            the first rows of a tensor, as nested arrays of numbers
//   {"what": "checksum" | "snapshot" | "compare"} {name: the XXH3 of the bytes as they came, 16 hexadecimal digits}
// A snapshot is kept until the next one. "compare" fails with the first tensors that have other bytes than it.
//
// Owner: WeightCommands. Thread safety: the worker's thread, which it holds up: the values of at most
// kMaxInspectedElements elements.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"
#include "models/model.h"

namespace millrace {

inline constexpr int64_t kMaxInspectedElements = 1 << 20;  // in one answer

class WeightInspector {
 public:
  Result<std::string> answer(const Model& model, const std::string& request);

 private:
  using Checksums = std::map<std::string, std::string>;
  static Result<std::string> values(const Model& model, const Json& request);
  Status compare(const Checksums& now) const;

  std::optional<Checksums> snapshot_;
};

}  // namespace millrace
