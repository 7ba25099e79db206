// Workers that make one result of one payload.
#include "examples/workers/args.h"
#include "examples/workers/makers.h"
#include "examples/workers/workers.h"

namespace millrace::examples {
namespace {

// A function worker with the common args.
template <typename Work>
MadeWorker function_worker(const Value& args, Work work) {
  ASSIGN_OR_RETURN(const CommonArgs common, CommonArgs::parse(args));
  return make_function_worker([common, work](ReqId, Value payload) -> Result<Value> {
    RETURN_IF_ERROR(common.prepare(payload));
    return work(std::move(payload));
  });
}

Result<BatchLimits> batch_limits(const Value& args) {
  BatchLimits limits;
  ASSIGN_OR_RETURN(const int64_t batch, int_of(args, "max_batch", limits.max_batch, 1, 4096));
  ASSIGN_OR_RETURN(const int64_t wait_ms, int_of(args, "max_wait_ms", limits.max_wait_ms, 0, 60'000));
  ASSIGN_OR_RETURN(const int64_t cost, int_of(args, "max_cost", 0, 0, int64_t{1} << 40));
  limits.max_batch = static_cast<int>(batch);
  limits.max_wait_ms = static_cast<int>(wait_ms);
  limits.max_cost = static_cast<double>(cost);
  return limits;
}

// Results element by element: what fails or throws on one payload is that one's.
template <typename Work>
MadeWorker batch_worker(const Value& args, Work work, CostFunction cost) {
  ASSIGN_OR_RETURN(const CommonArgs common, CommonArgs::parse(args));
  ASSIGN_OR_RETURN(const BatchLimits limits, batch_limits(args));
  const auto run = [common, work](std::vector<Value> payloads) {
    std::vector<Result<Value>> results;
    for (Value& payload : payloads) {
      const Status status = common.prepare(payload);
      results.push_back(status.ok() ? work(std::move(payload)) : Result<Value>(status));
    }
    return results;
  };
  return make_batch_worker(run, limits, std::move(cost));
}

Result<SharedTensor> image_of(const Value& given) {
  if (const SharedTensor* tensor = given.get<SharedTensor>()) {
    const Shape& shape = tensor->shape;
    const bool fits = tensor->dtype == DType::kU8 && shape.rank() == 3 && shape[2] == 3 && shape[0] > 0 && shape[1] > 0;
    if (fits && shape[0] <= kMaxPixels / shape[1]) return *tensor;
    return invalid_argument("image is {} {}; wanted U8 [height, width, 3], at most {} pixels",
                            dtype_name(tensor->dtype), shape.to_string(), kMaxPixels);
  }
  ASSIGN_OR_RETURN(const int64_t width, int_of(given, "width", 0, 1, 4096));
  ASSIGN_OR_RETURN(const int64_t height, int_of(given, "height", 0, 1, 4096));
  ASSIGN_OR_RETURN(const int64_t seed, int_of(given, "seed", 0, 0, INT64_MAX));
  if (width == 0 || height == 0) return invalid_argument("image lacks a width or a height");
  return make_tensor(DType::kU8, {height, width, 3}, make_pixels(width, height, static_cast<uint64_t>(seed)));
}

Result<SharedTensor> sound_of(const Value& given) {
  if (const SharedTensor* tensor = given.get<SharedTensor>()) {
    const Shape& shape = tensor->shape;
    if (tensor->dtype == DType::kI16 && shape.rank() == 1 && shape[0] <= kMaxWaveformSamples) return *tensor;
    return invalid_argument("audio is {} {}; wanted I16 [samples], at most {}", dtype_name(tensor->dtype),
                            shape.to_string(), kMaxWaveformSamples);
  }
  ASSIGN_OR_RETURN(const int64_t samples, int_of(given, "samples", 0, 0, kMaxWaveformSamples));
  ASSIGN_OR_RETURN(const int64_t seed, int_of(given, "seed", 0, 0, INT64_MAX));
  return make_tensor(DType::kI16, {samples}, make_samples(samples, static_cast<uint64_t>(seed)));
}

// {"text", "tokens": its bytes, "modalities", "max_tokens"?, "image"?, "audio"?}
Result<Value> preprocess(const Value& payload) {
  if (!payload.is<ValueMap>()) return invalid_argument("inputs is a {}; wanted a map", kind_name(payload));
  Value out;
  const std::string text = text_of(payload);
  out.set("text", text);
  const std::vector<uint8_t> bytes(text.begin(), text.end());
  out.set("tokens", make_tensor(DType::kI32, {static_cast<int64_t>(bytes.size())},
                                std::vector<int32_t>(bytes.begin(), bytes.end())));
  ValueList modalities;
  for (const std::string& name : modalities_of(payload)) {
    if (name != "text" && name != "audio") {
      return invalid_argument("modality '{}' is unknown; wanted 'text' or 'audio'", name);
    }
    modalities.emplace_back(name);
  }
  if (modalities.empty()) return invalid_argument("modalities is empty; wanted 'text', 'audio' or both");
  out.set("modalities", std::move(modalities));
  if (has(payload, "max_tokens")) {
    ASSIGN_OR_RETURN(const int64_t most, int_of(payload, "max_tokens", 0, 0, kMaxSteps));
    out.set("max_tokens", most);
  }
  if (has(payload, "image")) {
    ASSIGN_OR_RETURN(SharedTensor image, image_of(*payload.find("image")));
    out.set("image", std::move(image));
  }
  if (has(payload, "audio")) {
    ASSIGN_OR_RETURN(SharedTensor audio, sound_of(*payload.find("audio")));
    out.set("audio", std::move(audio));
  }
  return out;
}

Result<Value> encode_image(const Value& payload, int64_t size) {
  ASSIGN_OR_RETURN(const SharedTensor* image, tensor_of(payload, "image", DType::kU8, 3));
  const std::vector<uint8_t> small = box_filter(image->view().as<uint8_t>(), image->shape[0], image->shape[1], size);
  SharedTensor pixels = make_tensor(DType::kU8, {size, size, 3}, small);
  Value out;
  out.set("hash", hex(fnv(pixels.bytes.span())));
  out.set("pixels", std::move(pixels));
  return out;
}

Result<Value> encode_audio(const Value& payload, int64_t window) {
  ASSIGN_OR_RETURN(const SharedTensor* audio, tensor_of(payload, "audio", DType::kI16, 1));
  const std::vector<int64_t> sums = energies(audio->view().as<int16_t>(), window);
  SharedTensor energy = make_tensor(DType::kI64, {static_cast<int64_t>(sums.size())}, sums);
  Value out;
  out.set("hash", hex(fnv(energy.bytes.span())));
  out.set("energy", std::move(energy));
  return out;
}

std::string hash_in(const Value& payload, std::string_view key) {
  const Value* part = payload.find(key);
  const Value* hash = part ? part->find("hash") : nullptr;
  const std::string* text = hash ? hash->get<std::string>() : nullptr;
  return text ? *text : "";
}

}  // namespace

MadeWorker make_echo(const Value& args) {
  return function_worker(args, [](Value payload) -> Result<Value> { return payload; });
}

MadeWorker make_batch_echo(const Value& args) {
  const CostFunction cost = [](const Value& payload) { return static_cast<double>(text_of(payload).size()); };
  return batch_worker(
      args, [](Value payload) -> Result<Value> { return payload; }, cost);
}

MadeWorker make_preprocess(const Value& args) {
  return function_worker(args, [](const Value& payload) { return preprocess(payload); });
}

MadeWorker make_image_encoder(const Value& args) {
  ASSIGN_OR_RETURN(const int64_t size, int_of(args, "size", 16, 1, 1024));
  return batch_worker(
      args, [size](const Value& payload) { return encode_image(payload, size); }, nullptr);
}

MadeWorker make_audio_encoder(const Value& args) {
  ASSIGN_OR_RETURN(const int64_t window, int_of(args, "window", 160, 1, 1 << 20));
  return function_worker(args, [window](const Value& payload) { return encode_audio(payload, window); });
}

// The payload with "key": what the answer is drawn from.
MadeWorker make_aggregate(const Value& args) {
  return function_worker(args, [](Value payload) -> Result<Value> {
    const std::string all = text_of(payload) + "|" + hash_in(payload, "image") + "|" + hash_in(payload, "audio");
    payload.set("key", hex(fnv(all)));
    return payload;
  });
}

}  // namespace millrace::examples
