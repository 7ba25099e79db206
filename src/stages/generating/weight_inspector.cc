#include "stages/generating/weight_inspector.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "formats/safetensors.h"
#include "formats/tensor_names.h"
#include "kernels/ops.h"
#include "kernels/quantized.h"

namespace millrace {
namespace {

constexpr std::size_t kDifferencesInMessage = 5;

// A tied head serves as the embedding.
const WeightTable::Entry* find(const Model& model, const std::string& name) {
  const std::string plain = plain_tensor_name(name);
  const WeightTable::Entry* entry = model.weights().find(plain);
  if (entry != nullptr || plain != kHeadName || !model.config().tie_word_embeddings) return entry;
  return model.weights().find(kEmbeddingName);
}

Json shape_of(const WeightTable::Entry& entry) {
  Json shape = Json::array();
  const Shape& extents = entry.weight.view.shape;
  for (int i = 0; i < extents.rank(); ++i) shape.push_back(extents[i]);
  return shape;
}

Json tensors(const Model& model) {
  Json out = Json::array();
  for (const auto& [name, entry] : model.weights().entries()) {
    out.push_back({{"name", name}, {"dtype", dtype_name(entry.source)}, {"shape", shape_of(entry)}});
  }
  return out;
}

// Row-major, as a matrix [rows, columns]; a vector is one column.
struct Matrix {
  int64_t rows = 0, columns = 1;
  std::vector<float> values;
};

Result<Matrix> read_rows(const kernels::Weight& weight, int64_t most) {
  const Shape& shape = weight.view.shape;
  Matrix out{.rows = std::min(most, shape.rank() == 0 ? 1 : shape[0])};
  if (shape.rank() > 2) return error(StatusCode::kUnsupported, "it has {} dimensions; wanted 1 or 2", shape.rank());
  if (shape.rank() == 2) out.columns = shape[1];
  if (out.rows * out.columns > kMaxInspectedElements) {
    return invalid_argument("truncate_size is {} rows of {} elements; wanted at most {} elements", out.rows,
                            out.columns, kMaxInspectedElements);
  }
  if (out.rows == 0 || out.columns == 0) return out;
  // A plain vector is a table of rows of one element.
  kernels::Weight table = weight;
  if (shape.rank() < 2) table.view.shape = Shape{out.rows, 1};
  ThreadPool pool(1);
  ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::resolve_isa());
  const auto ops = kernels::make_ops(isa, pool);
  std::vector<int32_t> ids(static_cast<std::size_t>(out.rows));
  std::iota(ids.begin(), ids.end(), 0);
  out.values.resize(static_cast<std::size_t>(out.rows * out.columns));
  ops->embedding(table, ids, kernels::Rows(out.values.data(), out.rows, out.columns));
  return out;
}

}  // namespace

Result<std::string> WeightInspector::values(const Model& model, const Json& request) {
  std::string name;
  int64_t rows = 0;
  RETURN_IF_ERROR(json_read(request, "name", name));
  RETURN_IF_ERROR(json_read(request, "rows", rows));
  const WeightTable::Entry* entry = find(model, name);
  if (entry == nullptr) return error(StatusCode::kNotFound, "{} is no tensor of the model", quoted_name(name));
  ASSIGN_OR_RETURN(const Matrix matrix, read_rows(entry->weight, rows));
  const bool nested = entry->weight.view.shape.rank() == 2;
  std::string out = "[";
  for (int64_t r = 0; r < matrix.rows; ++r) {
    if (r > 0) out += ',';
    if (nested) out += '[';
    for (int64_t c = 0; c < matrix.columns; ++c) {
      const double value = matrix.values[static_cast<std::size_t>(r * matrix.columns + c)];
      out += (c > 0 ? "," : "") + Json(value).dump();
    }
    if (nested) out += ']';
  }
  return out + "]";
}

Status WeightInspector::compare(const Checksums& now) const {
  if (!snapshot_) return error(StatusCode::kConflict, "there is no snapshot; wanted the action 'snapshot' before");
  std::string names;
  std::size_t count = 0;
  for (const auto& [name, checksum] : *snapshot_) {
    const auto found = now.find(name);
    if (found != now.end() && found->second == checksum) continue;
    if (count++ < kDifferencesInMessage) names += (names.empty() ? "" : ", ") + quoted_name(name);
  }
  if (count == 0) return ok_status();
  return error(StatusCode::kConflict, "{} of {} tensors have other bytes than the snapshot: {}{}", count,
               snapshot_->size(), names, count > kDifferencesInMessage ? " and more" : "");
}

Result<std::string> WeightInspector::answer(const Model& model, const std::string& request) {
  ASSIGN_OR_RETURN(const Json body, parse_json(request));
  std::string what;
  RETURN_IF_ERROR(json_read(body, "what", what));
  if (what == "tensors") return tensors(model).dump();
  if (what == "values") return values(model, body);
  Checksums now;
  for (const auto& [name, entry] : model.weights().entries()) {
    if (entry.checksum) now[name] = fmt::format("{:016x}", *entry.checksum);
  }
  if (what == "compare") RETURN_IF_ERROR(compare(now));
  if (what == "snapshot") snapshot_ = now;
  return Json(now).dump();
}

}  // namespace millrace
