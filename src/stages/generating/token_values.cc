#include "stages/generating/token_values.h"

#include <algorithm>
#include <limits>

namespace millrace {
namespace {

// A pipeline's payload may lie on another device. Nothing here copies from there: the sender has to bring ids to the
// host.
Result<std::vector<int32_t>> ids_of_tensor(const SharedTensor& tensor) {
  if (tensor.dtype != DType::kI32 || tensor.shape.rank() != 1 || tensor.bytes.device() != Device::kHost) {
    return invalid_argument("ids is {} {}; wanted I32 [n] or a list of integers", dtype_name(tensor.dtype),
                            tensor.shape.to_string());
  }
  // A copy: the tensor's bytes may be those of a received message, which others share.
  const auto ids = tensor.view().as<int32_t>();
  return std::vector<int32_t>(ids.begin(), ids.end());
}

Result<std::vector<int32_t>> ids_of_list(const ValueList& list) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  // From JSON, whose integers have 64 bits. Whether an id is one of the vocabulary, the stage that uses it checks: this
  // one may have no tokenizer.
  for (std::size_t i = 0; i < list.size(); ++i) {
    const int64_t* id = list[i].get<int64_t>();
    if (id == nullptr) return invalid_argument("ids[{}] is a {}; wanted an integer", i, kind_name(list[i]));
    if (*id < std::numeric_limits<int32_t>::min() || *id > std::numeric_limits<int32_t>::max()) {
      return invalid_argument("ids[{}] is {}; wanted a token's id", i, *id);
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

Value strings(const std::vector<std::string>& texts) {
  ValueList out;
  for (const std::string& text : texts) out.emplace_back(text);
  return out;
}

// A missing option leaves the default in `out`; one of another type is refused, not ignored, since it comes from
// outside.
Status read(const Value& map, std::string_view key, bool& out) {
  const Value* given = map.find(key);
  if (given == nullptr) return ok_status();
  if (!given->is<bool>()) return invalid_argument("{} is a {}; wanted a boolean", key, kind_name(*given));
  out = *given->get<bool>();
  return ok_status();
}

Status read(const Value& map, std::string_view key, std::vector<std::string>& out) {
  const Value* given = map.find(key);
  if (given == nullptr) return ok_status();
  const ValueList* list = given->get<ValueList>();
  if (list == nullptr) return invalid_argument("{} is a {}; wanted a list of strings", key, kind_name(*given));
  for (const Value& element : *list) {
    const std::string* text = element.get<std::string>();
    if (text == nullptr) return invalid_argument("{} holds a {}; wanted strings", key, kind_name(element));
    out.push_back(*text);
  }
  return ok_status();
}

}  // namespace

// 32 bits, as the scheduler and the wire have ids: half of what a list of integers would take.
SharedTensor ids_tensor(std::span<const int32_t> ids) {
  Buffer buffer(ids.size() * sizeof(int32_t));
  std::copy(ids.begin(), ids.end(), buffer.as<int32_t>().begin());
  return {.dtype = DType::kI32, .shape = {static_cast<int64_t>(ids.size())}, .bytes = SharedBytes(std::move(buffer))};
}

Result<std::vector<int32_t>> ids_of(const Value& map) {
  if (!map.is<ValueMap>()) return invalid_argument("the payload is a {}; wanted a map with ids", kind_name(map));
  const Value* ids = map.find(kIdsKey);
  if (ids == nullptr) return invalid_argument("ids is missing; wanted I32 [n] or a list of integers");
  if (const auto* tensor = ids->get<SharedTensor>()) return ids_of_tensor(*tensor);
  if (const auto* list = ids->get<ValueList>()) return ids_of_list(*list);
  return invalid_argument("ids is a {}; wanted I32 [n] or a list of integers", kind_name(*ids));
}

// Only what differs from the default is written, so that a text without options carries no map at all. The keys are
// those of read_detokenize_options(), and of the HTTP API.
Value detokenize_options(const wire::DetokenizeStart& start) {
  Value out;
  if (!start.stop.empty()) out.set("stop", strings(start.stop));
  if (!start.stop_regex.empty()) out.set("stop_regex", strings(start.stop_regex));
  if (!start.skip_special_tokens) out.set("skip_special_tokens", false);
  if (start.include_stop_str_in_output) out.set("include_stop_str_in_output", true);
  if (start.continues_text) out.set("continues_text", true);
  return out;
}

Result<wire::DetokenizeStart> read_detokenize_options(const Value& map) {
  wire::DetokenizeStart out;
  const Value* given = map.find(kDetokenizeKey);
  if (given == nullptr) return out;
  if (!given->is<ValueMap>()) return invalid_argument("detokenize is a {}; wanted a map", kind_name(*given));
  RETURN_IF_ERROR(read(*given, "stop", out.stop));
  RETURN_IF_ERROR(read(*given, "stop_regex", out.stop_regex));
  RETURN_IF_ERROR(read(*given, "skip_special_tokens", out.skip_special_tokens));
  RETURN_IF_ERROR(read(*given, "include_stop_str_in_output", out.include_stop_str_in_output));
  RETURN_IF_ERROR(read(*given, "continues_text", out.continues_text));
  return out;
}

// Values share their bytes, so the copies are cheap.
Value without(const Value& map, std::initializer_list<std::string_view> keys) {
  Value out;
  const ValueMap* entries = map.get<ValueMap>();
  if (entries == nullptr) return out;
  for (const auto& [key, value] : *entries) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) out.set(key, value);
  }
  return out;
}

namespace {

// OpenAI's names. An abort is no reason here: it is a status of its own and has no result.
const char* reason_name(wire::FinishReason reason) { return reason == wire::FinishReason::kLength ? "length" : "stop"; }

Value usage_value(const wire::Usage& usage) {
  Value out;
  out.set("prompt_tokens", int64_t{usage.prompt_tokens});
  out.set("completion_tokens", int64_t{usage.completion_tokens});
  out.set("cached_tokens", int64_t{usage.cached_tokens});
  return out;
}

}  // namespace

void set_result(Value& map, std::span<const int32_t> ids, const wire::Finish& finish, const wire::Usage& usage) {
  map.set(std::string(kIdsKey), ids_tensor(ids));
  map.set("finish_reason", reason_name(finish.reason));
  // An integer for a token and a string for a text, as SGLang's `matched_stop` has them; at most one of the two is
  // there.
  if (finish.matched_token) map.set("matched_stop", int64_t{*finish.matched_token});
  if (finish.matched_text) map.set("matched_stop", *finish.matched_text);
  map.set("usage", usage_value(usage));
}

}  // namespace millrace
