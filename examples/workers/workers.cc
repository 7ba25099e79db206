// The rules, and the names of workers and rules in the library.
#include "examples/workers/workers.h"

#include "examples/workers/formulas.h"
#include "examples/workers/makers.h"

namespace millrace {

using examples::has;
using examples::wants;

namespace {

using Names = std::vector<std::string>;

Names active_sources(const Value& preprocessed) {
  Names names = {"preprocessing"};
  if (has(preprocessed, "image")) names.emplace_back("image_encoder");
  if (has(preprocessed, "audio")) names.emplace_back("audio_encoder");
  return names;
}

Result<Names> active_encoders(ReqId, const Value& preprocessed) {
  Names names = active_sources(preprocessed);
  names.front() = "mm_aggregate";
  return names;
}

Result<Names> active_generators(ReqId, const Value& aggregated) {
  Names names = {"thinker"};
  if (wants(aggregated, "audio")) names.emplace_back("talker_ar");
  return names;
}

Result<Names> active_listeners(ReqId, const Value& aggregated) {
  Names names;
  if (wants(aggregated, "audio")) names.emplace_back("talker_ar");
  if (wants(aggregated, "text")) names.emplace_back("decode");
  return names;
}

// What preprocessing says, with the encoders' results in place of what they encoded.
Result<Value> merge(std::map<std::string, Value> payloads) {
  const auto base = payloads.find("preprocessing");
  if (base == payloads.end()) return internal_error("there is no payload of 'preprocessing' to merge into");
  Value out = std::move(base->second);
  if (const auto image = payloads.find("image_encoder"); image != payloads.end()) {
    out.set("image", std::move(image->second));
  }
  if (const auto audio = payloads.find("audio_encoder"); audio != payloads.end()) {
    out.set("audio", std::move(audio->second));
  }
  return out;
}

Library::Projection only(const char* key) {
  return [key](const Value& result) -> Result<Value> {
    const Value* part = result.find(key);
    if (!part) return internal_error("there is no {} to project", key);
    Value out;
    out.set("text", examples::text_of(result));
    out.set(key, *part);
    return out;
  };
}

Result<Names> terminals(const Value& inputs) {
  Names names;
  if (wants(inputs, "text")) names.emplace_back("decode");
  if (wants(inputs, "audio")) names.emplace_back("code2wav");
  if (names.empty()) return invalid_argument("modalities names neither 'text' nor 'audio'; wanted one of them or both");
  return names;
}

}  // namespace

void add_example_workers(Library& library) {
  const auto add = [&library](const char* name, examples::MadeWorker (*make)(const Value&)) {
    library.workers[name] = [make](const Value& args, const Library::WorkerSlot&) { return make(args); };
  };
  add("toy.echo", examples::make_echo);
  add("toy.batch_echo", examples::make_batch_echo);
  add("toy.preprocess", examples::make_preprocess);
  add("toy.encode_image", examples::make_image_encoder);
  add("toy.encode_audio", examples::make_audio_encoder);
  add("toy.aggregate", examples::make_aggregate);
  add("toy.think", examples::make_think);
  add("toy.talk", examples::make_talk);
  add("toy.decode", examples::make_decode);
  add("toy.tone", examples::make_tone);
  library.routes["toy.active_encoders"] = active_encoders;
  library.routes["toy.active_generators"] = active_generators;
  library.routes["toy.active_listeners"] = active_listeners;
  library.wait_rules["toy.active_sources"] = [](ReqId, const std::string& from,
                                                const Value& payload) -> Result<std::optional<Names>> {
    if (from != "preprocessing") return std::optional<Names>();
    return std::optional<Names>(active_sources(payload));
  };
  library.merges["toy.merge"] = merge;
  library.projections["toy.only_image"] = only("image");
  library.projections["toy.only_audio"] = only("audio");
  library.terminal_rules["toy.terminals"] = terminals;
}

}  // namespace millrace
