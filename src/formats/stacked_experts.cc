#include "formats/stacked_experts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "formats/model_config.h"

namespace millrace {
namespace {

constexpr std::string_view kGateUp = "experts.gate_up_proj";
constexpr std::string_view kDown = "experts.down_proj";
constexpr std::string_view kRouter = "gate.weight";

// The tensors of one layer's mixture of experts; "model.layers.3.mlp." precedes their names.
struct Stack {
  const SafetensorsEntry* gate_up = nullptr;
  const SafetensorsEntry* down = nullptr;
  const SafetensorsEntry* router = nullptr;
  int64_t experts = 0, hidden = 0, inner = 0;
  bool transposed = false;  // each matrix
};
using Stacks = std::map<std::string, Stack, std::less<>>;

// "model.layers.3.mlp." where `name` is that and `tail`.
std::optional<std::string> layer_of(std::string_view name, std::string_view tail) {
  if (!name.ends_with(tail)) return std::nullopt;
  name.remove_suffix(tail.size());
  return name.ends_with(".mlp.") ? std::optional(std::string(name)) : std::nullopt;
}

Stacks find_stacks(const std::vector<SafetensorsHeader*>& headers) {
  Stacks out;
  for (const SafetensorsHeader* header : headers) {
    for (const SafetensorsEntry& entry : header->tensors) {
      if (const auto layer = layer_of(entry.name, kGateUp)) out[*layer].gate_up = &entry;
      if (const auto layer = layer_of(entry.name, kDown)) out[*layer].down = &entry;
    }
  }
  for (const SafetensorsHeader* header : headers) {
    for (const SafetensorsEntry& entry : header->tensors) {
      const auto layer = layer_of(entry.name, kRouter);
      if (const auto at = layer ? out.find(*layer) : out.end(); at != out.end()) at->second.router = &entry;
    }
  }
  return out;
}

Status wrong_shape(const SafetensorsEntry& entry, const std::string& wanted) {
  return invalid_argument("tensor {} has shape {}; wanted {}", quoted_name(entry.name), entry.shape.to_string(),
                          wanted);
}

Status check_complete(const std::string& layer, const Stack& stack) {
  for (const auto& [entry, tail] :
       {std::pair(stack.gate_up, kGateUp), std::pair(stack.down, kDown), std::pair(stack.router, kRouter)}) {
    if (entry != nullptr) continue;
    return invalid_argument("layer {} has stacked experts without {}; wanted gate_up_proj, down_proj and the router",
                            quoted_name(layer), quoted_name(fmt::format("{}{}", layer, tail)));
  }
  if (stack.router->shape.rank() != 2) return wrong_shape(*stack.router, "[experts, hidden size]");
  for (const SafetensorsEntry* entry : {stack.gate_up, stack.down}) {
    if (entry->shape.rank() != 3) return wrong_shape(*entry, "three dimensions, the experts first");
  }
  return ok_status();
}

// The sizes from the router and from down_proj, which has I beside H in both layouts.
Status read_sizes(Stack& stack) {
  stack.experts = stack.router->shape[0];
  stack.hidden = stack.router->shape[1];
  const Shape& down = stack.down->shape;
  stack.inner = down[1] == stack.hidden ? down[2] : down[1];
  const int64_t e = stack.experts, h = stack.hidden, i = stack.inner;
  if (e < 1 || e > kMaxExperts || h < 1 || h > kMaxHiddenSize || i < 1 || i > kMaxIntermediateSize) {
    return invalid_argument(
        "tensors {} {} and {} {} have {} experts, hidden size {} and inner size {}; wanted 1 to {}, "
        "{} and {}",
        quoted_name(stack.router->name), stack.router->shape.to_string(), quoted_name(stack.down->name),
        down.to_string(), e, h, i, kMaxExperts, kMaxHiddenSize, kMaxIntermediateSize);
  }
  return ok_status();
}

Status read_layout(Stack& stack) {
  const int64_t e = stack.experts, h = stack.hidden, i = stack.inner;
  const Shape gate_up_plain{e, 2 * i, h}, gate_up_transposed{e, h, 2 * i};
  const Shape down_plain{e, h, i}, down_transposed{e, i, h};
  const Shape &gate_up = stack.gate_up->shape, &down = stack.down->shape;
  if (!(down == down_plain || down == down_transposed)) {
    return wrong_shape(*stack.down, fmt::format("{} or {}", down_plain.to_string(), down_transposed.to_string()));
  }
  if (!(gate_up == gate_up_plain || gate_up == gate_up_transposed)) {
    return wrong_shape(*stack.gate_up,
                       fmt::format("{} or {}", gate_up_plain.to_string(), gate_up_transposed.to_string()));
  }
  // At most one of the two shapes is the same in both layouts.
  const bool gate_up_decides = h != 2 * i, down_decides = h != i;
  stack.transposed = gate_up_decides ? gate_up == gate_up_transposed : down == down_transposed;
  if (gate_up_decides && down_decides && stack.transposed != (down == down_transposed)) {
    return wrong_shape(*stack.down, fmt::format("{}, the layout of {} {}",
                                                (stack.transposed ? down_transposed : down_plain).to_string(),
                                                quoted_name(stack.gate_up->name), gate_up.to_string()));
  }
  return ok_status();
}

struct Matrix {
  std::string_view name;
  int64_t rows, columns;
  int64_t first;  // of its rows in the stacked matrix
};

// One entry for each expert and matrix of `from`, whose matrices have `stacked_rows` rows.
void append_experts(const std::string& layer, const Stack& stack, const SafetensorsEntry& from, int64_t stacked_rows,
                    const std::vector<Matrix>& matrices, std::vector<SafetensorsEntry>& out) {
  const auto size = static_cast<uint64_t>(dtype_size(from.dtype));
  const auto bytes = [&](int64_t elements) { return static_cast<uint64_t>(elements) * size; };
  uint64_t begin = from.begin;
  for (int64_t expert = 0; expert < stack.experts; ++expert) {
    const uint64_t expert_begin = begin;
    for (const Matrix& matrix : matrices) {
      SafetensorsEntry entry{fmt::format("{}experts.{}.{}.weight", layer, expert, matrix.name), from.dtype,
                             Shape{matrix.rows, matrix.columns}, begin, begin + bytes(matrix.rows * matrix.columns)};
      if (stack.transposed) entry.transposed = {expert_begin + bytes(matrix.first), stacked_rows};
      begin = entry.end;
      out.push_back(std::move(entry));
    }
  }
}

void append_experts(const std::string& layer, const Stack& stack, const SafetensorsEntry& from,
                    std::vector<SafetensorsEntry>& out) {
  const int64_t h = stack.hidden, i = stack.inner;
  if (&from == stack.down) return append_experts(layer, stack, from, h, {{"down_proj", h, i, 0}}, out);
  append_experts(layer, stack, from, 2 * i, {{"gate_proj", i, h, 0}, {"up_proj", i, h, i}}, out);
}

// In squares of kTile elements a dimension, so that both matrices are read and written in lines of the cache. The bytes
// of a file may lie misaligned.
template <typename Word>
void copy_transposed(const std::byte* data, const SafetensorsEntry& entry, std::byte* to) {
  constexpr int64_t kTile = 32;
  const int64_t rows = entry.shape[0], columns = entry.shape[1], stride = entry.transposed.stride;
  const std::byte* from = data + entry.transposed.origin;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
      for (int64_t r = r0; r < std::min(r0 + kTile, rows); ++r) {
        for (int64_t c = c0; c < std::min(c0 + kTile, columns); ++c) {
          std::memcpy(to + (r * columns + c) * int64_t{sizeof(Word)}, from + (c * stride + r) * int64_t{sizeof(Word)},
                      sizeof(Word));
        }
      }
    }
  }
}

}  // namespace

Result<bool> unstack_experts(const std::vector<SafetensorsHeader*>& headers) {
  Stacks stacks = find_stacks(headers);
  if (stacks.empty()) return false;
  for (auto& [layer, stack] : stacks) {
    RETURN_IF_ERROR(check_complete(layer, stack));
    RETURN_IF_ERROR(read_sizes(stack));
    RETURN_IF_ERROR(read_layout(stack));
  }
  // The stacks point into the headers: all of them are replaced at the end.
  std::vector<std::vector<SafetensorsEntry>> replaced(headers.size());
  for (std::size_t k = 0; k < headers.size(); ++k) {
    for (const SafetensorsEntry& entry : headers[k]->tensors) {
      auto layer = layer_of(entry.name, kGateUp);
      if (!layer) layer = layer_of(entry.name, kDown);
      if (layer) {
        append_experts(*layer, stacks.find(*layer)->second, entry, replaced[k]);
      } else {
        replaced[k].push_back(entry);
      }
    }
  }
  for (std::size_t k = 0; k < headers.size(); ++k) headers[k]->tensors = std::move(replaced[k]);
  return true;
}

bool is_stacked_experts(std::string_view name) { return layer_of(name, kGateUp) || layer_of(name, kDown); }

Result<std::vector<SafetensorsEntry>> unstack_entry(const SafetensorsEntry& stacked, const ExpertSizes& sizes) {
  const int64_t e = sizes.experts, h = sizes.hidden, i = sizes.inner;
  const auto of_gate_up = layer_of(stacked.name, kGateUp);
  const int64_t out = of_gate_up ? 2 * i : h, in = of_gate_up ? h : i;
  const Shape plain{e, out, in}, transposed{e, in, out};
  if (!(stacked.shape == plain || stacked.shape == transposed)) {
    return wrong_shape(stacked, fmt::format("{} or {}", plain.to_string(), transposed.to_string()));
  }
  if (plain == transposed) {
    return error(StatusCode::kUnsupported,
                 "tensor {} has shape {}, in which its experts may be transposed or not; "
                 "wanted a tensor for each expert",
                 quoted_name(stacked.name), stacked.shape.to_string());
  }
  Stack stack{.experts = e, .hidden = h, .inner = i, .transposed = stacked.shape == transposed};
  (of_gate_up ? stack.gate_up : stack.down) = &stacked;
  std::vector<SafetensorsEntry> entries;
  append_experts(of_gate_up ? *of_gate_up : *layer_of(stacked.name, kDown), stack, stacked, entries);
  return entries;
}

void copy_transposed(const std::byte* data, const SafetensorsEntry& entry, std::byte* to) {
  switch (dtype_size(entry.dtype)) {
    case 1:
      return copy_transposed<uint8_t>(data, entry, to);
    case 2:
      return copy_transposed<uint16_t>(data, entry, to);
    case 4:
      return copy_transposed<uint32_t>(data, entry, to);
    default:
      return copy_transposed<uint64_t>(data, entry, to);
  }
}

}  // namespace millrace
