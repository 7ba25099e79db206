#include "formats/processor_config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "formats/config_fields.h"
#include "formats/gguf_vision.h"
#include "formats/mapped_file.h"
#include "formats/model_config.h"

namespace millrace {
namespace {

using config_fields::guarded;
using config_fields::parse_object;
using config_fields::read_int;
using config_fields::read_real;

constexpr int kBicubic = 3;  // PIL.Image.Resampling

// The values that the readers below know; any other do_* that is true would change the pixels.
constexpr std::string_view kKnownSteps[] = {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb",
                                            "do_sample_frames"};

Status read_pixels(const Json& object, std::string_view key, int64_t limit, int64_t& out) {
  if (json_find(object, key) == nullptr) return ok_status();
  int64_t value = 0;
  RETURN_IF_ERROR(json_read(object, key, value));
  if (value < 1 || value > limit) return invalid_argument("{} is {}; wanted 1 to {}", key, value, limit);
  out = value;
  return ok_status();
}

Status read_size(const Json& root, int64_t limit, PixelConfig& out) {
  if (const Json* size = json_find(root, "size")) {
    if (!size->is_object()) return invalid_argument("size is of type {}; wanted an object", json_type_name(*size));
    for (const auto& [key, value] : size->items()) {
      if (key == "shortest_edge" || key == "longest_edge" || value.is_null()) continue;
      return error(StatusCode::kUnsupported, "size has '{}'; wanted shortest_edge and longest_edge alone",
                   key.substr(0, 64));
    }
    for (const char* key : {"shortest_edge", "longest_edge"}) {
      const bool shortest = key[0] == 's';
      const bool given = json_find(*size, key) != nullptr;
      // The older spelling beside it counts, and makes up for a missing key.
      if (!given && json_find(root, shortest ? "min_pixels" : "max_pixels") == nullptr) {
        return invalid_argument("size has no {}; wanted a count of pixels", key);
      }
      RETURN_IF_ERROR(read_pixels(*size, key, limit, shortest ? out.min_pixels : out.max_pixels).with_prefix("size"));
    }
  }
  RETURN_IF_ERROR(read_pixels(root, "min_pixels", limit, out.min_pixels));
  RETURN_IF_ERROR(read_pixels(root, "max_pixels", limit, out.max_pixels));
  if (out.min_pixels > out.max_pixels) {
    return invalid_argument("the least count of pixels is {}, the largest is {}; wanted the first to be no larger",
                            out.min_pixels, out.max_pixels);
  }
  return ok_status();
}

// Three numbers, or one for all channels, in [low, 1000].
Status read_channels(const Json& root, std::string_view key, double low, std::array<double, 3>& out) {
  const Json* field = json_find(root, key);
  if (field == nullptr) return ok_status();
  const Json list = field->is_array() ? *field : Json::array({*field, *field, *field});
  if (list.size() != out.size()) return invalid_argument("{} has {} numbers; wanted 3", key, list.size());
  for (std::size_t c = 0; c < out.size(); ++c) {
    if (!list[c].is_number()) return invalid_argument("{} has a {}; wanted numbers", key, json_type_name(list[c]));
    const auto value = list[c].get<double>();
    if (!(value >= low && value <= 1000)) return invalid_argument("{} has {}; wanted {} to 1000", key, value, low);
    out[c] = value;
  }
  return ok_status();
}

Status refuse_other_steps(const Json& root) {
  for (const auto& [key, value] : root.items()) {
    if (!key.starts_with("do_") || std::ranges::find(kKnownSteps, key) != std::end(kKnownSteps)) continue;
    if (value.is_null() || value == false) continue;
    return error(StatusCode::kUnsupported, "{} is {}; wanted false: this step is not implemented", key.substr(0, 64),
                 value.is_boolean() ? "true" : json_type_name(value));
  }
  bool convert_rgb = true;
  RETURN_IF_ERROR(json_read(root, "do_convert_rgb", convert_rgb));
  if (!convert_rgb) return error(StatusCode::kUnsupported, "do_convert_rgb is false; wanted true: images become RGB");
  int resample = kBicubic;
  RETURN_IF_ERROR(read_int(root, "resample", kBicubic, 0, 100, resample));
  if (resample == kBicubic) return ok_status();
  return error(StatusCode::kUnsupported, "resample is {}; wanted {} (bicubic)", resample, kBicubic);
}

Status check_class(const Json& root, std::string_view key, std::initializer_list<std::string_view> known) {
  std::string name;
  RETURN_IF_ERROR(json_read(root, key, name));
  if (name.empty() || std::ranges::find(known, name) != known.end()) return ok_status();
  return error(StatusCode::kUnsupported, "{} is '{}'; wanted {}", key, name.substr(0, 64), *known.begin());
}

Status read_common(const Json& root, int64_t max_pixels, PixelConfig& out) {
  RETURN_IF_ERROR(refuse_other_steps(root));
  RETURN_IF_ERROR(read_int(root, "patch_size", out.patch_size, 1, kMaxConfigPatchSize, out.patch_size));
  RETURN_IF_ERROR(read_int(root, "temporal_patch_size", out.temporal_patch_size, 1, kMaxConfigTemporalPatchSize,
                           out.temporal_patch_size));
  RETURN_IF_ERROR(read_int(root, "merge_size", out.merge_size, 1, kMaxConfigMergeSize, out.merge_size));
  RETURN_IF_ERROR(json_read(root, "do_resize", out.resize));
  RETURN_IF_ERROR(json_read(root, "do_rescale", out.rescale));
  RETURN_IF_ERROR(json_read(root, "do_normalize", out.normalize));
  RETURN_IF_ERROR(read_real(root, "rescale_factor", out.rescale_factor, 0, true, 1000, out.rescale_factor));
  RETURN_IF_ERROR(read_channels(root, "image_mean", -1000, out.mean));
  RETURN_IF_ERROR(read_channels(root, "image_std", 1e-6, out.std));
  return read_size(root, max_pixels, out);
}

Result<PixelConfig> image_of(const Json& root) {
  RETURN_IF_ERROR(check_class(root, "image_processor_type",
                              {"Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil",
                               "Qwen3VLImageProcessor", "Qwen3VLImageProcessorFast"}));
  PixelConfig out;
  RETURN_IF_ERROR(read_common(root, kMaxConfigImagePixels, out));
  return out;
}

bool is_unserved_video(const Json& root) {
  const Json* name = json_find(root, "video_processor_type");
  return name != nullptr && *name == "Qwen2VLVideoProcessor";
}

Result<VideoConfig> video_of(const Json& root) {
  RETURN_IF_ERROR(check_class(root, "video_processor_type", {"Qwen3VLVideoProcessor"}));
  for (const char* key : {"min_pixels", "max_pixels", "num_frames"}) {
    if (json_find(root, key) == nullptr) continue;
    return error(StatusCode::kUnsupported, "{} is given for videos; wanted size and fps", key);
  }
  VideoConfig out;
  out.pixels = {.patch_size = 16,
                .min_pixels = 128 * 32 * 32,
                .max_pixels = 32 * 32 * 768,
                .mean = {0.5, 0.5, 0.5},
                .std = {0.5, 0.5, 0.5}};
  RETURN_IF_ERROR(read_common(root, kMaxConfigVideoPixels, out.pixels));
  RETURN_IF_ERROR(json_read(root, "do_sample_frames", out.sample_frames));
  RETURN_IF_ERROR(read_real(root, "fps", out.fps, 0, true, 1000, out.fps));
  RETURN_IF_ERROR(read_int(root, "min_frames", out.min_frames, 1, kMaxConfigFrames, out.min_frames));
  RETURN_IF_ERROR(read_int(root, "max_frames", out.max_frames, out.min_frames, kMaxConfigFrames, out.max_frames));
  return out;
}

Status check_served(const Json& root, std::string_view key, int64_t served, int& out) {
  RETURN_IF_ERROR(read_int(root, key, served, INT32_MIN, INT32_MAX, out));
  if (out == served) return ok_status();
  return error(StatusCode::kUnsupported, "{} is {}; wanted {}", key, out, served);
}

Result<SoundConfig> sound_of(const Json& root) {
  RETURN_IF_ERROR(check_class(root, "feature_extractor_type", {"WhisperFeatureExtractor"}));
  SoundConfig out;
  RETURN_IF_ERROR(read_int(root, "feature_size", out.mel_bins, 1, kMaxConfigMelBins, out.mel_bins));
  RETURN_IF_ERROR(check_served(root, "sampling_rate", kServedSamplingRate, out.sampling_rate));
  RETURN_IF_ERROR(check_served(root, "n_fft", kServedFftSize, out.n_fft));
  RETURN_IF_ERROR(check_served(root, "hop_length", kServedHopLength, out.hop_length));
  double dither = 0;
  RETURN_IF_ERROR(json_read(root, "dither", dither));
  if (dither == 0) return out;
  return error(StatusCode::kUnsupported, "dither is {}; wanted 0: the same sound has the same features", dither);
}

// Whether a file that may describe pictures alone describes sound.
bool has_sound(const Json& root) {
  for (const char* key : {"feature_extractor_type", "feature_size", "n_fft", "hop_length", "sampling_rate"}) {
    if (json_find(root, key) != nullptr) return true;
  }
  return false;
}

// The object that describes one processor, and the file that it is in; null JSON: there is none.
struct Found {
  Json root;
  std::string path;
};

Result<Found> find_processor(const std::string& dir, const char* nested_key, const char* file) {
  for (const char* name : {"processor_config.json", file}) {
    const std::string path = dir + "/" + name;
    ASSIGN_OR_RETURN(const bool exists, file_exists(path));
    if (!exists) continue;
    ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxConfigFileBytes));
    ASSIGN_OR_RETURN(Json root, guarded<Json>(path, [&] { return parse_object(text); }));
    if (name == file) return Found{std::move(root), path};
    const Json* nested = json_find(root, nested_key);
    if (nested == nullptr) continue;
    if (nested->is_object()) return Found{*nested, path + ": " + nested_key};
    return invalid_argument("{}: {} is of type {}; wanted an object", path, nested_key, json_type_name(*nested));
  }
  return Found{};
}

}  // namespace

Result<PixelConfig> parse_image_processor(std::string_view text, std::string_view path) {
  return guarded<PixelConfig>(path, [&]() -> Result<PixelConfig> {
    ASSIGN_OR_RETURN(const Json root, parse_object(text));
    return image_of(root);
  });
}

Result<VideoConfig> parse_video_processor(std::string_view text, std::string_view path) {
  return guarded<VideoConfig>(path, [&]() -> Result<VideoConfig> {
    ASSIGN_OR_RETURN(const Json root, parse_object(text));
    return video_of(root);
  });
}

Result<SoundConfig> parse_feature_extractor(std::string_view text, std::string_view path) {
  return guarded<SoundConfig>(path, [&]() -> Result<SoundConfig> {
    ASSIGN_OR_RETURN(const Json root, parse_object(text));
    return sound_of(root);
  });
}

Result<ProcessorConfig> read_processor_config(const std::string& model) {
  ASSIGN_OR_RETURN(const std::optional<std::string> gguf, find_gguf(model));
  const std::string model_dir = gguf ? std::filesystem::path(*gguf).parent_path().string() : model;
  ProcessorConfig out;
  ASSIGN_OR_RETURN(const Found image, find_processor(model_dir, "image_processor", "preprocessor_config.json"));
  if (image.path.empty() && gguf) {
    ASSIGN_OR_RETURN(const std::optional<std::string> tower, find_tower(*gguf));
    if (!tower) return error(StatusCode::kNotFound, "{}: there is no mmproj*.gguf beside it; wanted one", *gguf);
    ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*tower));
    auto pixels = tower_pixels(opened);
    if (!pixels.ok()) return pixels.status().with_prefix(*tower);
    out.image = *pixels;
    return out;
  }
  if (image.path.empty()) {
    return error(StatusCode::kNotFound,
                 "{}: it has no preprocessor_config.json, and no image_processor in a "
                 "processor_config.json; a model that sees images needs one",
                 model_dir);
  }
  ASSIGN_OR_RETURN(out.image, guarded<PixelConfig>(image.path, [&] { return image_of(image.root); }));
  ASSIGN_OR_RETURN(const Found sound, find_processor(model_dir, "feature_extractor", "preprocessor_config.json"));
  if (!sound.path.empty() && has_sound(sound.root)) {
    ASSIGN_OR_RETURN(out.sound, guarded<SoundConfig>(sound.path, [&] { return sound_of(sound.root); }));
  }
  ASSIGN_OR_RETURN(const Found video, find_processor(model_dir, "video_processor", "video_preprocessor_config.json"));
  if (video.path.empty() || is_unserved_video(video.root)) return out;
  ASSIGN_OR_RETURN(out.video, guarded<VideoConfig>(video.path, [&] { return video_of(video.root); }));
  return out;
}

}  // namespace millrace
