#include "stages/weight_plan.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"

namespace millrace {
namespace {

// The name that SGLang uses where a trainer gives none.
constexpr const char* kDefaultGroup = "weight_update_group";

struct NamedDType {
  const char* name;  // as PyTorch writes it
  DType dtype;
};
// The first name of each type is the one that to_json() writes.
constexpr NamedDType kDTypes[] = {{"bfloat16", DType::kBF16}, {"float16", DType::kF16}, {"float32", DType::kF32},
                                  {"bf16", DType::kBF16},     {"half", DType::kF16},    {"float", DType::kF32},
                                  {"BF16", DType::kBF16},     {"F16", DType::kF16},     {"F32", DType::kF32}};

Result<DType> dtype_of(std::string_view name) {
  // str(torch.bfloat16) in Python.
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const NamedDType& known : kDTypes) {
    if (name == known.name) return known.dtype;
  }
  return error(StatusCode::kUnsupported, "dtype is '{}'; wanted bfloat16, float16 or float32", name.substr(0, 64));
}

std::string_view name_of(DType dtype) {
  for (const NamedDType& known : kDTypes) {
    if (dtype == known.dtype) return known.name;
  }
  return "";
}

Result<int> read_int_between(const Json& body, const char* key, int absent, int least, int most) {
  int64_t value = absent;
  RETURN_IF_ERROR(json_read(body, key, value));
  // Compared in 64 bits, so that a large number is refused and not cut.
  if (value >= least && value <= most) return static_cast<int>(value);
  return invalid_argument("{} is {}; wanted {} to {}", key, value, least, most);
}

// Some trainers send it as a string.
Result<uint16_t> read_port(const Json& body) {
  const Json* port = json_find(body, "master_port");
  int64_t value = 0;
  if (port != nullptr && port->is_string()) {
    const auto& text = port->get_ref<const std::string&>();
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    // Also what follows the digits: "29500x" is no port. 0 is refused below with the rest.
    if (code != std::errc() || end != text.data() + text.size()) value = 0;
  } else {
    RETURN_IF_ERROR(json_read(body, "master_port", value));
  }
  if (value >= 1 && value <= 65535) return static_cast<uint16_t>(value);
  return invalid_argument("master_port is {}; wanted the port of the trainer's store, 1 to 65535", value);
}

Result<const Json*> read_list(const Json& bucket, const char* key) {
  const Json* list = json_find(bucket, key);
  if (list != nullptr && list->is_array()) return list;
  return invalid_argument("{} is {}; wanted an array", key, list == nullptr ? "missing" : json_type_name(*list));
}

Result<Shape> read_shape(const Json& extents) {
  // A Shape has space for so many extents.
  if (!extents.is_array() || extents.size() > kMaxDims) {
    return invalid_argument("its shape is no array of at most {} integers", kMaxDims);
  }
  Shape shape;
  int64_t elements = 1;
  for (const Json& extent : extents) {
    if (!extent.is_number_integer()) return invalid_argument("its shape has a {}", json_type_name(extent));
    // Unsigned first: get<int64_t>() of a number over INT64_MAX would wrap to a negative one, or to one that passes.
    const bool fits =
        !extent.is_number_unsigned() || extent.get<uint64_t>() <= static_cast<uint64_t>(kMaxTensorElements);
    const int64_t value = fits ? extent.get<int64_t>() : -1;
    // Before the product, which then cannot overflow. kMaxWeightTensors tensors of this size still sum up in 64 bits.
    if (value < 0 || value > kMaxTensorElements || (value > 0 && elements > kMaxTensorElements / value)) {
      return invalid_argument("its shape has more than {} elements, or an extent below 0", kMaxTensorElements);
    }
    elements *= value;
    shape.push_back(value);
  }
  return shape;
}

Result<TensorSpec> read_tensor(const Json& name, const Json& dtype, const Json& shape) {
  // Before get_ref<>() below, which throws for another type.
  if (!name.is_string() || !dtype.is_string()) return invalid_argument("names and dtypes hold other than strings");
  TensorSpec out{.name = name.get<std::string>()};
  if (out.name.empty() || out.name.size() > kMaxTensorNameBytes) {
    return invalid_argument("a name has {} bytes; wanted 1 to {}", out.name.size(), kMaxTensorNameBytes);
  }
  Result<DType> type = dtype_of(dtype.get_ref<const std::string&>());
  // Every error from here on names the tensor: an update has hundreds.
  if (!type.ok()) return type.status().with_prefix(quoted_name(out.name));
  Result<Shape> extents = read_shape(shape);
  if (!extents.ok()) return extents.status().with_prefix(quoted_name(out.name));
  out.dtype = *type;
  out.shape = *extents;
  return out;
}

Result<std::vector<TensorSpec>> read_bucket(const Json& bucket) {
  if (!bucket.is_object()) return invalid_argument("a bucket is a {}; wanted an object", json_type_name(bucket));
  ASSIGN_OR_RETURN(const Json* names, read_list(bucket, "names"));
  ASSIGN_OR_RETURN(const Json* dtypes, read_list(bucket, "dtypes"));
  ASSIGN_OR_RETURN(const Json* shapes, read_list(bucket, "shapes"));
  // Three lists side by side, as trainers send them; a shorter one would shift all that follows.
  if (names->empty() || names->size() != dtypes->size() || names->size() != shapes->size()) {
    return invalid_argument("a bucket has {} names, {} dtypes and {} shapes; wanted as many of each, at least one",
                            names->size(), dtypes->size(), shapes->size());
  }
  std::vector<TensorSpec> out;
  for (std::size_t i = 0; i < names->size(); ++i) {
    ASSIGN_OR_RETURN(TensorSpec tensor, read_tensor((*names)[i], (*dtypes)[i], (*shapes)[i]));
    out.push_back(std::move(tensor));
  }
  return out;
}

Result<int64_t> read_from_0(const Json& body, const char* key) {
  int64_t value = 0;
  RETURN_IF_ERROR(json_read(body, key, value));
  if (value >= 0) return value;
  return invalid_argument("{} is {}; wanted 0 or more", key, value);
}

Status check_counts(const Json& body, const WeightPlan& plan) {
  int64_t count = static_cast<int64_t>(plan.buckets.size());
  // Redundant: a trainer that counts otherwise than it describes would leave a broadcast without a receiver.
  RETURN_IF_ERROR(json_read(body, "num_buckets", count));
  if (count != static_cast<int64_t>(plan.buckets.size())) {
    return invalid_argument("num_buckets is {} and {} are described; wanted the same", count, plan.buckets.size());
  }
  std::size_t tensors = 0;
  for (const auto& bucket : plan.buckets) tensors += bucket.size();
  if (tensors <= kMaxWeightTensors) return ok_status();
  return error(StatusCode::kTooLarge, "the update has {} tensors; wanted at most {}", tensors, kMaxWeightTensors);
}

}  // namespace

std::vector<TensorSpec> WeightPlan::tensors() const {
  std::vector<TensorSpec> out;
  for (const auto& bucket : buckets) out.insert(out.end(), bucket.begin(), bucket.end());
  return out;
}

uint64_t WeightPlan::size_bytes() const {
  uint64_t bytes = 0;
  for (const auto& bucket : buckets) {
    for (const TensorSpec& tensor : bucket) bytes += tensor.size_bytes();
  }
  return bytes;
}

Result<std::string> read_group_name(const Json& body) {
  std::string name = kDefaultGroup;
  RETURN_IF_ERROR(json_read(body, "group_name", name));
  if (name.size() > kMaxGroupNameBytes) {
    return invalid_argument("group_name has {} bytes; wanted at most {}", name.size(), kMaxGroupNameBytes);
  }
  return name;
}

Result<TrainerGroup> read_trainer_group(const Json& body) {
  TrainerGroup out;
  RETURN_IF_ERROR(json_read(body, "master_address", out.address));
  if (out.address.empty() || out.address.size() > kMaxTrainerHostBytes) {
    return invalid_argument("master_address has {} bytes; wanted the trainer's host, 1 to {}", out.address.size(),
                            kMaxTrainerHostBytes);
  }
  ASSIGN_OR_RETURN(out.port, read_port(body));
  ASSIGN_OR_RETURN(out.rank_offset, read_int_between(body, "rank_offset", 1, 1, kMaxTrainerRanks - 1));
  // At least one rank is ours, behind the trainer's own.
  ASSIGN_OR_RETURN(out.world_size, read_int_between(body, "world_size", 2, out.rank_offset + 1, kMaxTrainerRanks));
  ASSIGN_OR_RETURN(out.name, read_group_name(body));
  RETURN_IF_ERROR(json_read(body, "backend", out.backend));
  if (out.backend == "gloo" || out.backend == "nccl") return out;
  return error(StatusCode::kUnsupported, "backend is '{}'; wanted 'gloo' or 'nccl'", out.backend.substr(0, 64));
}

Result<WeightPlan> read_weight_plan(const Json& body) {
  WeightPlan out;
  ASSIGN_OR_RETURN(out.group, read_group_name(body));
  std::string format;
  RETURN_IF_ERROR(json_read(body, "load_format", format));
  // "direct" and none mean the same: each tensor is a broadcast.
  if (!format.empty() && format != "direct" && format != "flattened_bucket") {
    return error(StatusCode::kUnsupported, "load_format is '{}'; wanted null, 'direct' or 'flattened_bucket'",
                 format.substr(0, 64));
  }
  out.flattened = format == "flattened_bucket";
  // Without `buckets` the body itself is one: SGLang's form.
  if (const Json* buckets = json_find(body, "buckets"); buckets != nullptr) {
    if (!buckets->is_array() || buckets->empty() || buckets->size() > kMaxWeightBuckets) {
      return invalid_argument("buckets is no array of 1 to {} buckets", kMaxWeightBuckets);
    }
    for (const Json& bucket : *buckets) {
      Result<std::vector<TensorSpec>> tensors = read_bucket(bucket);
      if (!tensors.ok()) return tensors.status().with_prefix(fmt::format("bucket {}", out.buckets.size()));
      out.buckets.push_back(std::move(*tensors));
    }
  } else {
    ASSIGN_OR_RETURN(std::vector<TensorSpec> tensors, read_bucket(body));
    out.buckets.push_back(std::move(tensors));
  }
  // Of plans that to_json() made; trainers do not know our versions.
  ASSIGN_OR_RETURN(const int64_t base_version, read_from_0(body, "base_version"));
  out.base_version = static_cast<uint64_t>(base_version);
  ASSIGN_OR_RETURN(out.round, read_from_0(body, "round"));
  RETURN_IF_ERROR(check_counts(body, out));
  return out;
}

Result<WeightBody> read_weight_body(const Json& plan) {
  WeightBody out;
  const Json* body = json_find(plan, "body");
  if (body == nullptr) return out;
  std::string checksum;
  RETURN_IF_ERROR(json_read(*body, "path", out.path));
  ASSIGN_OR_RETURN(const int64_t begin, read_from_0(*body, "begin"));
  ASSIGN_OR_RETURN(const int64_t end, read_from_0(*body, "end"));
  if (begin > end)
    return invalid_argument("the body has the bytes [{}, {}); wanted a begin of at most its end", begin, end);
  // As text: a JSON number over 2^53 loses bits in many readers.
  RETURN_IF_ERROR(json_read(*body, "checksum", checksum));
  out.begin = static_cast<uint64_t>(begin), out.end = static_cast<uint64_t>(end);
  const char* after = checksum.data() + checksum.size();
  const auto [stop, code] = std::from_chars(checksum.data(), after, out.checksum);
  if (code == std::errc() && stop == after) return out;
  return invalid_argument("the body's checksum is '{}'; wanted a number of 64 bits", checksum.substr(0, 64));
}

std::string to_json(const TrainerGroup& group) {
  return Json{{"master_address", group.address}, {"master_port", group.port}, {"rank_offset", group.rank_offset},
              {"world_size", group.world_size},  {"group_name", group.name},  {"backend", group.backend}}
      .dump();
}

std::string to_json(const WeightPlan& plan, uint64_t base_version, int64_t round) {
  Json buckets = Json::array();
  for (const auto& bucket : plan.buckets) {
    Json names = Json::array(), dtypes = Json::array(), shapes = Json::array();
    for (const TensorSpec& tensor : bucket) {
      names.push_back(tensor.name);
      dtypes.push_back(name_of(tensor.dtype));
      Json shape = Json::array();
      for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
      shapes.push_back(std::move(shape));
    }
    buckets.push_back({{"names", std::move(names)}, {"dtypes", std::move(dtypes)}, {"shapes", std::move(shapes)}});
  }
  Json out{{"group_name", plan.group},
           {"load_format", plan.flattened ? "flattened_bucket" : "direct"},
           {"base_version", base_version},
           {"round", round},
           {"buckets", std::move(buckets)}};
  if (!plan.body.path.empty()) {
    // Only here and never from a client's JSON: read_weight_plan() leaves it out, so a request cannot name a file of
    // this host.
    out["body"] = {{"path", plan.body.path},
                   {"begin", plan.body.begin},
                   {"end", plan.body.end},
                   {"checksum", fmt::format("{}", plan.body.checksum)}};
  }
  return out.dump();
}

}  // namespace millrace
