#include "media/video.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "media/ppm_stream.h"

namespace millrace {
namespace {

constexpr char kPackage[] = "ffmpeg";
constexpr char kContainers[] = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif";
// Of sound and subtitles too: ffprobe opens those of all streams, and fails where one is not listed.
constexpr char kCodecs[] =
    "h264,hevc,vp8,vp9,libvpx,libvpx-vp9,av1,libdav1d,libaom-av1,mpeg4,mjpeg,gif,"
    "aac,aac_latm,mp3,mp3float,mp2,mp2float,opus,libopus,vorbis,ac3,eac3,flac,alac,amrnb,amrwb,pcm_u8,pcm_s16le,pcm_"
    "s16be,"
    "pcm_s24le,pcm_f32le,adpcm_ima_qt,adpcm_ima_wav,adpcm_ms,mov_text,subrip,srt,ass,ssa,webvtt,text";
constexpr std::size_t kMaxProbeBytes = 64 << 10;
constexpr double kDefaultFps = 24;  // as in transformers, where the file has none

std::vector<std::string> command(std::string program) {
  return {std::move(program),
          "-v",
          "quiet",
          "-protocol_whitelist",
          "file",
          "-format_whitelist",
          kContainers,
          "-codec_whitelist",
          kCodecs,
          "-threads",
          "1"};
}

void add(std::vector<std::string>& arguments, std::initializer_list<const char*> more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
}

// "30000/1001"; 0: none.
double read_rate(const Json& stream, const char* key) {
  const Json* value = json_find(stream, key);
  if (value == nullptr || !value->is_string()) return 0;
  const auto& text = value->get_ref<const std::string&>();
  char* slash = nullptr;
  const double above = std::strtod(text.c_str(), &slash);
  const double below = *slash == '/' ? std::strtod(slash + 1, nullptr) : 1;
  return above > 0 && below > 0 ? above / below : 0;
}

ChildLimits child_limits(const VideoLimits& limits, const Cancelled& cancelled) {
  return {.cpu_seconds = limits.decode_seconds,
          .time = std::chrono::seconds(limits.decode_seconds),
          .cancelled = cancelled,
          .option = " (--video-decode-seconds)"};
}

Status not_read() {
  return invalid_argument("it is no video that is read; wanted MP4, QuickTime, Matroska, WebM, AVI or GIF");
}

}  // namespace

Result<VideoInfo> parse_video_info(std::string_view text, const VideoLimits& limits) {
  const auto root = parse_json(text);
  const Json* streams = root.ok() ? json_find(*root, "streams") : nullptr;
  if (streams == nullptr || !streams->is_array() || streams->empty() || !(*streams)[0].is_object()) return not_read();
  const Json& stream = (*streams)[0];
  VideoInfo out;
  std::string frames;
  RETURN_IF_ERROR(json_read(stream, "nb_read_frames", frames));
  RETURN_IF_ERROR(json_read(stream, "width", out.width));
  RETURN_IF_ERROR(json_read(stream, "height", out.height));
  out.frames = std::strtoll(frames.c_str(), nullptr, 10);
  if (out.frames < 1 || out.width < 1 || out.height < 1) return not_read();
  if (out.width > limits.pixels / out.height) {
    return invalid_argument("its frames have {} x {} pixels; wanted at most {} (--video-max-pixels)", out.width,
                            out.height, limits.pixels);
  }
  if (out.frames > limits.frames) {
    return invalid_argument("it has {} frames; wanted at most {} (--video-max-frames)", out.frames, limits.frames);
  }
  out.fps = read_rate(stream, "avg_frame_rate");
  if (out.fps == 0) out.fps = read_rate(stream, "r_frame_rate");
  if (out.fps == 0) out.fps = kDefaultFps;
  const double seconds = static_cast<double>(out.frames) / out.fps;
  if (seconds > limits.seconds) {
    return invalid_argument("it plays for {:.0f} seconds; wanted at most {} (--video-max-seconds)", seconds,
                            limits.seconds);
  }
  return out;
}

Result<VideoInfo> probe_video(std::span<const uint8_t> bytes, const VideoLimits& limits, const Cancelled& cancelled) {
  if (bytes.size() > static_cast<std::size_t>(limits.mib) << 20) {
    return error(StatusCode::kTooLarge, "it has {} bytes; wanted at most {} MiB (--video-max-mib)", bytes.size(),
                 limits.mib);
  }
  ASSIGN_OR_RETURN(std::string program, find_program("ffprobe", kPackage));
  std::vector<std::string> arguments = command(std::move(program));
  add(arguments, {"-select_streams", "v:0", "-count_frames", "-show_entries",
                  "stream=nb_read_frames,avg_frame_rate,r_frame_rate,width,height", "-of", "json", kChildInput});
  std::string printed;
  const Status run = run_child(arguments, bytes, child_limits(limits, cancelled), [&](std::span<const uint8_t> data) {
    printed.append(reinterpret_cast<const char*>(data.data()), data.size());
    return printed.size() <= kMaxProbeBytes ? ok_status() : invalid_argument("ffprobe prints too much of it");
  });
  if (run.code() == StatusCode::kInvalidArgument && printed.find("streams") == std::string::npos) return not_read();
  RETURN_IF_ERROR(run);
  return parse_video_info(printed, limits);
}

Status decode_frames(std::span<const uint8_t> bytes, std::span<const int64_t> indices, const VideoLimits& limits,
                     const Cancelled& cancelled, const std::function<Status(Image)>& on_frame) {
  ASSIGN_OR_RETURN(std::string program, find_program("ffmpeg", kPackage));
  std::vector<std::string> arguments = command(std::move(program));
  std::string chosen;
  for (const int64_t index : indices) chosen += fmt::format("{}eq(n\\,{})", chosen.empty() ? "" : "+", index);
  // A frame of another size would make the filters anew, which count from 0 again: they stay, and scale it to the
  // first.
  add(arguments, {"-nostdin", "-reinit_filter", "0", "-i", kChildInput, "-map", "0:v:0", "-vf"});
  arguments.push_back("select=" + chosen + ",scale=iw:ih");
  add(arguments, {"-vsync", "passthrough", "-frames:v"});
  arguments.push_back(std::to_string(indices.size()));
  add(arguments, {"-f", "image2pipe", "-c:v", "ppm", "-pix_fmt", "rgb24", "pipe:1"});
  PpmStream frames(limits.pixels);
  std::size_t count = 0;
  const auto counted = [&](Image image) {
    ++count;
    return on_frame(std::move(image));
  };
  RETURN_IF_ERROR(run_child(arguments, bytes, child_limits(limits, cancelled),
                            [&](std::span<const uint8_t> data) { return frames.add(data, counted); }));
  if (count == indices.size()) return ok_status();
  return invalid_argument("{} of its frames were decoded; wanted {}", count, indices.size());
}

}  // namespace millrace
