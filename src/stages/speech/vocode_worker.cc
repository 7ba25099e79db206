// vocode: frames of codes to samples, which go to the client as they are made.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "stages/speech/speech_workers.h"

namespace millrace {
namespace {

constexpr int64_t kMaxFramesTogether = 8;  // of one call: more make no frame cheaper, and others wait longer

Result<std::vector<int32_t>> codes_of(const Value& chunk, const Code2WavConfig& config) {
  const Value* codes = chunk.is<ValueMap>() ? chunk.find(kCodesKey) : nullptr;
  const SharedTensor* tensor = codes == nullptr ? nullptr : codes->get<SharedTensor>();
  if (tensor == nullptr || tensor->dtype != DType::kI32 || tensor->shape.rank() != 2 ||
      tensor->shape[1] != config.quantizers) {
    return invalid_argument("a chunk without codes; wanted I32 [frames, {}] under \"{}\"", config.quantizers,
                            kCodesKey);
  }
  std::vector<int32_t> out(static_cast<std::size_t>(tensor->shape.elements()));
  std::memcpy(out.data(), tensor->bytes.data(), out.size() * sizeof(int32_t));
  for (const int32_t code : out) {
    if (code >= 0 && code < config.codebook_size) continue;
    return invalid_argument("the code {}; wanted 0 to {}", code, config.codebook_size - 1);
  }
  return out;
}

Value samples_chunk(const std::vector<float>& samples) {
  Buffer buffer(samples.size() * sizeof(float));
  std::copy(samples.begin(), samples.end(), buffer.as<float>().begin());
  SharedTensor tensor{
      .dtype = DType::kF32, .shape = {static_cast<int64_t>(samples.size())}, .bytes = SharedBytes(std::move(buffer))};
  Value chunk;
  chunk.set(kSamplesKey, std::move(tensor));
  return chunk;
}

class VocodeWorker : public Worker {
 public:
  explicit VocodeWorker(LoadVocoder load) : load_(std::move(load)) {}

  Status load(const LoadProgress& progress) override {
    ASSIGN_OR_RETURN(vocoder_, load_(progress));
    return ok_status();
  }

  void chunk(ReqId id, const std::string&, Value chunk, Emit& emit) override {
    Result<std::vector<int32_t>> codes = codes_of(chunk, vocoder_.model->config());
    if (!codes.ok()) return fail(id, codes.status(), emit);
    Sound& sound = sound_of(id);
    sound.codes.insert(sound.codes.end(), codes->begin(), codes->end());
  }

  // The talker's result may come before codes that a relay still brings: they end with their stream.
  void start(ReqId id, Value, Emit& emit) override {
    sound_of(id).talker_ended = true;
    conclude(id, emit);
  }

  void chunks_done(ReqId id, const std::string&, Emit& emit) override {
    sound_of(id).codes_ended = true;
    conclude(id, emit);
  }

  void drop(ReqId id) override { sounds_.erase(id); }

  // One call for one sound, so that events come between two: the one that has been given the least so far.
  int tick(int64_t, Emit& emit) override {
    bool waits = false;
    auto next = sounds_.end();
    for (auto it = sounds_.begin(); it != sounds_.end(); ++it) {
      if (it->second.codes.empty()) continue;
      if (emit.congested(it->first)) {
        waits = true;
      } else if (next == sounds_.end() || it->second.state->frames() < next->second.state->frames()) {
        next = it;
      }
    }
    if (next == sounds_.end()) return waits ? kRestMs : kNever;
    decode(next->first, next->second, emit);
    return 0;
  }

  bool describe(wire::StageStatus& status) const override {
    status.steps = calls_;
    status.running = static_cast<int32_t>(sounds_.size());
    status.frozen_checksum = vocoder_.weights_checksum;
    status.metrics = {{"vocoder_frames_total", static_cast<double>(frames_)},
                      {"vocoder_samples_total", static_cast<double>(samples_)},
                      {"vocoder_compute_seconds_total", compute_seconds_}};
    return true;
  }

 private:
  struct Sound {
    std::unique_ptr<VocoderState> state;
    std::vector<int32_t> codes;  // [frames, quantizers] that were not decoded yet: at most the talker's context
    bool talker_ended = false, codes_ended = false;
  };

  Sound& sound_of(ReqId id) {
    Sound& sound = sounds_[id];
    if (sound.state == nullptr) sound.state = vocoder_.model->start();
    return sound;
  }

  // The first frames one by one, later ones in groups, as many as there have been: the first sound comes soon.
  void decode(ReqId id, Sound& sound, Emit& emit) {
    const auto width = static_cast<std::size_t>(vocoder_.model->config().quantizers);
    const auto queued = static_cast<int64_t>(sound.codes.size() / width);
    const int64_t count = std::min({queued, std::max<int64_t>(1, sound.state->frames()), kMaxFramesTogether});
    const auto end = sound.codes.begin() + count * static_cast<int64_t>(width);
    const std::vector<int32_t> codes(sound.codes.begin(), end);
    sound.codes.erase(sound.codes.begin(), end);
    std::vector<float> samples;
    const auto begin = std::chrono::steady_clock::now();
    const Status status = vocoder_.model->decode(
        codes, *sound.state, *vocoder_.ops, [] { return true; }, samples);
    compute_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!status.ok()) return fail(id, status, emit);
    ++calls_;
    frames_ += static_cast<uint64_t>(count);
    samples_ += samples.size();
    if (!samples.empty()) emit.chunk_to(id, "", samples_chunk(samples), kAudioModality);
    conclude(id, emit);
  }

  void conclude(ReqId id, Emit& emit) {
    const auto found = sounds_.find(id);
    const Sound& sound = found->second;
    if (!sound.talker_ended || !sound.codes_ended || !sound.codes.empty()) return;
    sounds_.erase(found);
    emit.result(id, Value());
  }

  void fail(ReqId id, const Status& status, Emit& emit) {
    sounds_.erase(id);
    emit.fail(id, status);
  }

  const LoadVocoder load_;
  LoadedVocoder vocoder_;  // from load() on
  std::unordered_map<ReqId, Sound> sounds_;
  uint64_t calls_ = 0, frames_ = 0, samples_ = 0;
  double compute_seconds_ = 0;
};

}  // namespace

std::unique_ptr<Worker> make_vocode_worker(LoadVocoder load) { return std::make_unique<VocodeWorker>(std::move(load)); }

}  // namespace millrace
