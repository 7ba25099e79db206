#include "runner/layer_step.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/xxh3.h"

namespace millrace {
namespace {

constexpr std::size_t kNumbersOfCopy = 3;  // direction, page, page of the host tier

template <typename T>
Status check_equal(const char* what, const T& seen, const T& wanted) {
  if (seen == wanted) return ok_status();
  return error(StatusCode::kConflict, "{} is {}; wanted {}", what, seen, wanted);
}

Status check_pages(const wire::LayerSequence& sequence, std::span<const int32_t> pages, const wire::ChainFacts& facts) {
  const int64_t end = int64_t{sequence.token_index} + sequence.rows;
  const int64_t wanted = (end + facts.page_size - 1) / facts.page_size;
  if (static_cast<int64_t>(pages.size()) < wanted) {
    return invalid_argument("{} pages for {} tokens; wanted at least {}", pages.size(), end, wanted);
  }
  for (const int32_t page : pages) {
    if (page < 0 || page >= facts.page_count) {
      return invalid_argument("the page {}; wanted [0, {})", page, facts.page_count);
    }
  }
  return ok_status();
}

Status check_rows(const wire::LayerRows& rows, const wire::ChainFacts& facts, uint64_t checksum) {
  if (rows.hidden_size != facts.hidden_size) {
    return invalid_argument("hidden_size is {}; wanted {}", rows.hidden_size, facts.hidden_size);
  }
  if (rows.seq > facts.max_rows) return invalid_argument("{} rows; wanted at most {}", rows.seq, facts.max_rows);
  if (rows.checksum == checksum) return ok_status();
  return invalid_argument("the checksum of the rows is {:#x}; wanted {:#x}", checksum, rows.checksum);
}

wire::StepKind kind_of(const Part& part) {
  bool prefill = false, decode = false;
  for (const kernels::AttentionSequence& sequence : part.sequences) (sequence.row_count > 1 ? prefill : decode) = true;
  if (prefill && decode) return wire::StepKind::kMixed;
  return prefill ? wire::StepKind::kPrefill : wire::StepKind::kDecode;
}

}  // namespace

wire::ChainFacts chain_facts(const ModelConfig& config, const RunnerOptions& options, kernels::Isa isa,
                             uint64_t model_hash, uint64_t weight_version) {
  return {.model_hash = model_hash,
          .layers = config.layers,
          .hidden_size = static_cast<int32_t>(config.hidden_size),
          .page_size = options.page_size,
          .page_count = options.page_count,
          .host_page_count = options.host_page_count,
          .max_rows = options.max_rows,
          .kv_dtype = std::string(dtype_name(options.kv_dtype)),
          .isa = kernels::arithmetic_name(isa, options.activations),
          .weight_version = weight_version};
}

Status check_same_chain(const wire::ChainFacts& seen, const wire::ChainFacts& wanted) {
  RETURN_IF_ERROR(check_equal("the hash of the model", seen.model_hash, wanted.model_hash));
  RETURN_IF_ERROR(check_equal("the number of layers", seen.layers, wanted.layers));
  RETURN_IF_ERROR(check_equal("the hidden size", seen.hidden_size, wanted.hidden_size));
  RETURN_IF_ERROR(check_equal("the page size", seen.page_size, wanted.page_size));
  RETURN_IF_ERROR(check_equal("the number of KV pages", seen.page_count, wanted.page_count));
  RETURN_IF_ERROR(check_equal("the number of host pages", seen.host_page_count, wanted.host_page_count));
  RETURN_IF_ERROR(check_equal("the most rows of a step", seen.max_rows, wanted.max_rows));
  RETURN_IF_ERROR(check_equal("the type of the KV cache", seen.kv_dtype, wanted.kv_dtype));
  RETURN_IF_ERROR(check_equal("the instruction set", seen.isa, wanted.isa));
  return check_equal("the version of the weights", seen.weight_version, wanted.weight_version);
}

uint64_t chain_checksum(uint64_t before, uint64_t here) {
  const uint64_t sums[] = {before, here};
  FieldsChecksum sum;
  sum.add(sums, sizeof(sums));
  clear_upper_vectors();
  return sum.value();
}

wire::LayerStep make_layer_step(const OutgoingPart& outgoing) {
  const Part& part = *outgoing.part;
  wire::LayerStep step;
  step.step_kind = kind_of(part);
  step.step = outgoing.batch->step;
  step.part = outgoing.number;
  for (std::size_t i = 0; i < part.sequences.size(); ++i) {
    const kernels::AttentionSequence& sequence = part.sequences[i];
    step.batch.push_back({.request_id = outgoing.batch->sequences[part.indices[i]].request,
                          .token_index = static_cast<int32_t>(sequence.kv_length_before),
                          .rows = static_cast<int32_t>(sequence.row_count),
                          .pages = {sequence.pages.begin(), sequence.pages.end()}});
  }
  for (const LogitRow& row : part.logit_rows) step.answer_rows.push_back(static_cast<int32_t>(row.row));
  if (outgoing.number > 0) return step;
  for (const PageCopy& copy : outgoing.batch->copies) {
    step.copies.insert(step.copies.end(),
                       {static_cast<int32_t>(copy.direction), copy.page.value, copy.host_page.value});
  }
  return step;
}

wire::LayerRows pack_rows(kernels::ConstRows rows) {
  wire::LayerRows out{.seq = static_cast<int32_t>(rows.count), .hidden_size = static_cast<int32_t>(rows.width)};
  const std::size_t bytes = static_cast<std::size_t>(rows.width) * sizeof(float);
  out.payload_bytes = static_cast<uint64_t>(rows.count) * bytes;
  out.bytes.bytes.resize(out.payload_bytes);
  char* to = out.bytes.bytes.data();
  for (int64_t i = 0; i < rows.count; ++i, to += bytes) std::memcpy(to, rows.row(i), bytes);
  return out;
}

// A string's memory is aligned for any number, where it is longer than what fits in the object; rows are.
kernels::ConstRows rows_of(const wire::LayerRows& rows) {
  return {reinterpret_cast<const float*>(rows.bytes.bytes.data()), rows.seq, rows.hidden_size};
}

std::optional<wire::LayerMedia> pack_media(const Part& part, int end, int64_t hidden_size) {
  if (part.positions3.empty()) return std::nullopt;
  wire::LayerMedia out;
  const std::size_t position_bytes = part.positions3.size() * sizeof part.positions3.front();
  out.positions.bytes.assign(reinterpret_cast<const char*>(part.positions3.data()), position_bytes);
  for (const RowAddition& addition : part.additions) {
    if (addition.layer < end) continue;
    out.additions.insert(out.additions.end(), {addition.layer, static_cast<int32_t>(addition.row)});
    out.features.bytes.append(reinterpret_cast<const char*>(addition.features),
                              static_cast<std::size_t>(hidden_size) * sizeof(float));
  }
  return out;
}

wire::LayerMedia media_behind(wire::LayerMedia media, int end, int64_t hidden_size) {
  const std::size_t bytes = static_cast<std::size_t>(hidden_size) * sizeof(float);
  wire::LayerMedia out{.positions = std::move(media.positions)};
  for (std::size_t i = 0; i + 1 < media.additions.size(); i += 2) {
    if (media.additions[i] < end) continue;
    out.additions.insert(out.additions.end(), {media.additions[i], media.additions[i + 1]});
    out.features.bytes.append(media.features.bytes, i / 2 * bytes, bytes);
  }
  return out;
}

// As rows_of(); the 12 bytes of one position may lie inside of the string, which is aligned for them too.
std::span<const std::array<float, 3>> positions_of(const wire::LayerMedia& media) {
  using Position = std::array<float, 3>;
  return {reinterpret_cast<const Position*>(media.positions.bytes.data()),
          media.positions.bytes.size() / sizeof(Position)};
}

std::vector<RowAddition> additions_of(const wire::LayerMedia& media, int64_t hidden_size) {
  const auto* features = reinterpret_cast<const float*>(media.features.bytes.data());
  std::vector<RowAddition> out;
  for (std::size_t i = 0; i + 1 < media.additions.size(); i += 2, features += hidden_size) {
    out.push_back({media.additions[i], media.additions[i + 1], features});
  }
  return out;
}

Status check_layer_step(const wire::LayerStep& step, const StepTables& tables, const wire::ChainFacts& facts) {
  if (step.weight_version != facts.weight_version) {
    return invalid_argument("weight_version is {}; wanted {}", step.weight_version, facts.weight_version);
  }
  RETURN_IF_ERROR(check_rows(step.rows, facts, layer_checksum(step)));
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const Status status = check_pages(step.batch[i], tables[i], facts);
    if (!status.ok()) return status.with_prefix(fmt::format("request {}", step.batch[i].request_id.value));
  }
  return ok_status();
}

Status check_layer_result(const wire::LayerResult& result, const wire::ChainFacts& facts) {
  return check_rows(result.rows, facts, layer_checksum(result));
}

Result<std::vector<PageCopy>> copies_of(const wire::LayerStep& step) {
  std::vector<PageCopy> copies;
  for (std::size_t i = 0; i + kNumbersOfCopy <= step.copies.size(); i += kNumbersOfCopy) {
    const int32_t direction = step.copies[i];
    if (direction != 0 && direction != 1) {
      return invalid_argument("a copy has the direction {}; wanted 0 (to the host tier) or 1", direction);
    }
    copies.push_back({.direction = direction == 0 ? CopyDirection::kToHost : CopyDirection::kFromHost,
                      .page = PageId{step.copies[i + 1]},
                      .host_page = PageId{step.copies[i + 2]}});
  }
  return copies;
}

}  // namespace millrace
