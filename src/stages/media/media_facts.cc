#include "stages/media/media_facts.h"

#include "base/log.h"
#include "formats/processor_config.h"

namespace millrace {
namespace {

Result<PatchConfig> patch_config(const std::string& path, const PixelConfig& pixels, const VisionConfig& vision) {
  if (pixels.patch_size != vision.patch_size || pixels.merge_size != vision.merge_size ||
      pixels.temporal_patch_size != vision.temporal_patch_size) {
    return invalid_argument("{}: patches of {} x {}, merged by {}; wanted {} x {} and {}, as in config.json", path,
                            pixels.temporal_patch_size, pixels.patch_size, pixels.merge_size,
                            vision.temporal_patch_size, vision.patch_size, vision.merge_size);
  }
  return PatchConfig{.patch_size = pixels.patch_size,
                     .temporal_patch_size = pixels.temporal_patch_size,
                     .merge_size = pixels.merge_size,
                     .min_pixels = pixels.min_pixels,
                     .max_pixels = pixels.max_pixels,
                     .resize = pixels.resize,
                     .rescale = pixels.rescale,
                     .normalize = pixels.normalize,
                     .rescale_factor = pixels.rescale_factor,
                     .mean = pixels.mean,
                     .std = pixels.std};
}

Result<PictureFacts> picture_facts(const std::string& path, const PixelConfig& pixels, const VisionConfig& vision) {
  ASSIGN_OR_RETURN(const PatchConfig patches, patch_config(path + "/preprocessor_config.json", pixels, vision));
  return PictureFacts{.patches = patches, .token_id = vision.image_token_id};
}

Result<VideoFacts> video_facts(const std::string& path, const VideoConfig& video, const VisionConfig& vision) {
  ASSIGN_OR_RETURN(const PatchConfig patches,
                   patch_config(path + "/video_preprocessor_config.json", video.pixels, vision));
  return VideoFacts{.patches = patches,
                    .sampling = {.sample = video.sample_frames,
                                 .fps = video.fps,
                                 .min_frames = video.min_frames,
                                 .max_frames = video.max_frames},
                    .token_id = vision.video_token_id,
                    .start_id = vision.vision_start_token_id,
                    .end_id = vision.vision_end_token_id};
}

Result<AudioFacts> audio_facts(const std::string& path, const SoundConfig& sound, const AudioConfig& audio) {
  if (sound.mel_bins != audio.mel_bins) {
    return invalid_argument("{}/preprocessor_config.json: feature_size is {}; wanted {}, num_mel_bins in config.json",
                            path, sound.mel_bins, audio.mel_bins);
  }
  AudioFacts facts;
  facts.mel = {.bins = sound.mel_bins, .n_fft = sound.n_fft, .hop = sound.hop_length, .rate = sound.sampling_rate};
  RETURN_IF_ERROR(check_mel_config(facts.mel).with_prefix(path + "/preprocessor_config.json"));
  facts.limits.max_bytes = wire::kMaxMediaBytes;
  facts.token_id = audio.audio_token_id;
  return facts;
}

}  // namespace

Result<MediaFacts> read_media_facts(const std::string& path, const ModelConfig& config) {
  MediaFacts out;
  if (!config.vision && !config.audio) return out;
  const Result<ProcessorConfig> processor = read_processor_config(path);
  if (processor.status().code() == StatusCode::kNotFound) {
    LOG_WARNING("text only: {}", processor.status().message());
    return out;
  }
  RETURN_IF_ERROR(processor.status());
  if (config.vision) {
    ASSIGN_OR_RETURN(out.pictures, picture_facts(path, processor->image, *config.vision));
    if (processor->video) {
      ASSIGN_OR_RETURN(out.videos, video_facts(path, *processor->video, *config.vision));
    }
  }
  if (config.audio && processor->sound) {
    ASSIGN_OR_RETURN(out.audio, audio_facts(path, *processor->sound, *config.audio));
  } else if (config.audio) {
    LOG_WARNING("no audio: {} does not describe a feature extractor", path);
  }
  return out;
}

}  // namespace millrace
