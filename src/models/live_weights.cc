#include "models/live_weights.h"

#include <cstring>
#include <set>
#include <utility>

#include "formats/packed_file.h"
#include "formats/stacked_experts.h"
#include "formats/tensor_names.h"
#include "models/matrix_checksum.h"
#include "models/weight_reader.h"

namespace millrace {
namespace {

constexpr std::size_t kProblemsInMessage = 5;

// As load_model() ignores them in files.
bool dropped(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

// A trainer that sends a tied tensor under both names sends it twice, whichever comes first.
Status check_twin(const WeightTable::Entry& first, const TensorView& second, ThreadPool& pool) {
  const auto sum = [&] {
    if (first.packs) return MatrixChecksum(second, pool, {}).value();
    return checksum({static_cast<const std::byte*>(second.data), second.size_bytes()}, 0, pool);
  };
  return first.source == second.dtype && first.checksum == sum() ? ok_status() : tied_head_differs();
}

}  // namespace

LiveWeights::LiveWeights(std::shared_ptr<const Model> serving, LoadOptions options,
                         std::shared_ptr<const FrozenTensors> frozen)
    : serving_(std::move(serving)), options_(std::move(options)), frozen_(std::move(frozen)) {}

std::string LiveWeights::serving_name(const std::string& name) const {
  std::string plain = plain_tensor_name(name);
  if (serving_->weights().find(plain) != nullptr) return plain;
  if (plain == kHeadName && serving_->config().tie_word_embeddings) return kEmbeddingName;
  return "";
}

std::string LiveWeights::frozen_name(const std::string& name) const {
  if (frozen_ == nullptr) return "";
  for (std::string known : {plain_tensor_name(name), serving_name(name)}) {
    if (frozen_->has(known)) return known;
  }
  return "";
}

Status LiveWeights::problem_of(const TensorSpec& tensor) const {
  const std::string frozen = frozen_name(tensor.name);
  if (!frozen.empty()) return frozen_->check(frozen, tensor.dtype, tensor.shape);
  const WeightTable::Entry* entry = serving_->weights().find(serving_name(tensor.name));
  if (entry == nullptr) return invalid_argument("{} is no tensor of the model", quoted_name(tensor.name));
  const Shape& wanted = entry->weight.view.shape;
  if (!(tensor.shape == wanted)) {
    return invalid_argument("{} has shape {}; wanted {}", quoted_name(tensor.name), tensor.shape.to_string(),
                            wanted.to_string());
  }
  if (!options_.quantize && is_quantized(entry->weight.dtype())) {
    return error(StatusCode::kUnsupported, "{} serves as {} of a file; wanted F32, F16 or BF16",
                 quoted_name(tensor.name), dtype_name(entry->weight.dtype()));
  }
  return ok_status();
}

bool LiveWeights::is_stacked(const TensorSpec& tensor) const {
  const std::string plain = plain_tensor_name(tensor.name);
  return serving_->config().num_experts > 0 && is_stacked_experts(plain) && !is_of_omni_part(plain);
}

Result<std::vector<SafetensorsEntry>> LiveWeights::experts_of(const TensorSpec& tensor) const {
  const ModelConfig& config = serving_->config();
  return unstack_entry({plain_tensor_name(tensor.name), tensor.dtype, tensor.shape, 0, tensor.size_bytes()},
                       {config.num_experts, config.hidden_size, config.moe_intermediate_size});
}

Result<std::vector<TensorSpec>> LiveWeights::apart(const TensorSpec& tensor) const {
  if (!is_stacked(tensor)) return std::vector{tensor};
  ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries, experts_of(tensor));
  std::vector<TensorSpec> out;
  out.reserve(entries.size());
  for (SafetensorsEntry& entry : entries) out.push_back({std::move(entry.name), entry.dtype, entry.shape});
  return out;
}

Status LiveWeights::check(const std::vector<TensorSpec>& tensors) const {
  std::set<std::string> names;
  std::string problems;
  std::size_t count = 0;
  StatusCode code = StatusCode::kInvalidArgument;
  const auto add_problem = [&](const Status& problem) {
    if (problem.ok()) return;
    if (count == 0) code = problem.code();
    if (count++ < kProblemsInMessage) problems += (problems.empty() ? "" : "; ") + problem.message();
  };
  for (const TensorSpec& sent : tensors) {
    const auto parts = apart(sent);
    add_problem(parts.status());
    if (!parts.ok()) continue;
    for (const TensorSpec& tensor : *parts) {
      if (!names.insert(plain_tensor_name(tensor.name)).second) {
        add_problem(invalid_argument("{} is named twice", quoted_name(tensor.name)));
      } else if (!dropped(tensor.name)) {
        add_problem(problem_of(tensor));
      }
    }
  }
  if (count == 0) return ok_status();
  if (count > kProblemsInMessage) problems += fmt::format("; and {} more", count - kProblemsInMessage);
  return Status(code, std::move(problems));
}

bool LiveWeights::covers_all(const std::vector<TensorSpec>& tensors) const {
  std::set<std::string> names;
  for (const TensorSpec& sent : tensors) {
    const auto parts = apart(sent);
    if (!parts.ok()) return false;
    for (const TensorSpec& tensor : *parts) names.insert(serving_name(tensor.name));
  }
  for (const auto& [name, entry] : serving_->weights().entries()) {
    if (!names.contains(name) && frozen_name(name).empty()) return false;
  }
  return true;
}

// Expert by expert, so that little is held twice.
Status LiveWeights::add_stacked(const TensorSpec& tensor, const Buffer& bytes) {
  ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries, experts_of(tensor));
  for (const SafetensorsEntry& entry : entries) {
    const TensorSpec matrix{entry.name, entry.dtype, entry.shape};
    Buffer part(matrix.size_bytes());
    if (entry.is_transposed()) {
      copy_transposed(bytes.data(), entry, part.data());
    } else {
      std::memcpy(part.data(), bytes.data() + entry.begin, part.size_bytes());
    }
    RETURN_IF_ERROR(add(matrix, part));
  }
  return ok_status();
}

Status LiveWeights::add(const TensorSpec& tensor, Buffer& bytes) {
  CHECK(bytes.size_bytes() == tensor.size_bytes());
  if (is_stacked(tensor)) return add_stacked(tensor, bytes);
  if (dropped(tensor.name)) return ok_status();
  const std::string frozen = frozen_name(tensor.name);
  if (!frozen.empty()) return frozen_->compare(frozen, {bytes.data(), bytes.size_bytes()}, pool_);
  const std::string name = serving_name(tensor.name);
  CHECK(!name.empty());
  const bool packs = serving_->weights().find(name)->packs;
  const TensorView view{.data = bytes.data(), .dtype = tensor.dtype, .shape = tensor.shape};
  const WeightTable::Entry* twin = name == kEmbeddingName ? table_->find(name) : nullptr;
  if (twin != nullptr) return check_twin(*twin, view, pool_);
  WeightTable::Entry entry{.weight = view, .packs = packs, .source = tensor.dtype};
  if (packs) {
    MatrixChecksum sum(view, pool_, {});
    const auto wanted = quantized_dtype(options_, name, tensor.dtype, tensor.shape[1]);
    auto weight = kernels::pack_weight(options_.isa, view, pool_, wanted, [&sum](int64_t rows) { sum.add(rows); });
    if (!weight.ok()) return weight.status().with_prefix(name);
    entry.weight = std::move(weight).value();
    entry.checksum = sum.value();
  } else {
    entry.checksum = checksum({bytes.data(), bytes.size_bytes()}, 0, pool_);
  }
  if (entry.weight.packed == nullptr) entry.owner = std::make_shared<Buffer>(std::move(bytes));
  table_->put(name, std::move(entry));
  return ok_status();
}

Result<std::shared_ptr<const Model>> LiveWeights::make(uint64_t version) {
  for (const auto& [name, entry] : serving_->weights().entries()) {
    if (table_->find(name) == nullptr) table_->put(name, entry);
  }
  return model_of_table(serving_->config(), std::exchange(table_, nullptr), serving_->layers(), version);
}

}  // namespace millrace
