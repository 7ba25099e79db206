#include "stages/media/prompt_video.h"

#include <cstring>
#include <utility>

#include "media/frame_pack.h"
#include "media/resize.h"
#include "media/video.h"

namespace millrace {
namespace {

Image copy_of(const Image& image) {
  Image out(image.width(), image.height());
  std::memcpy(out.row(0), image.row(0), image.size_bytes());
  return out;
}

class GroupMaker {
 public:
  GroupMaker(const VideoFacts& facts, std::size_t frames, std::vector<double> times)
      : patches_(facts.patches), frames_(static_cast<int>(frames)), times_(std::move(times)) {}

  Status add(Image frame) {
    if (items_.empty() && group_.empty()) RETURN_IF_ERROR(choose_size({frame.width(), frame.height()}));
    const bool fits = frame.width() == size_.width && frame.height() == size_.height;
    group_.push_back(fits ? std::move(frame) : resize_bicubic(frame, size_.width, size_.height));
    if (std::ssize(group_) == patches_.temporal_patch_size) end_group();
    return ok_status();
  }

  // The last frame is repeated until its group is complete.
  std::vector<PromptItem> finish() {
    while (!group_.empty()) {
      group_.push_back(copy_of(group_.back()));
      if (std::ssize(group_) == patches_.temporal_patch_size) end_group();
    }
    return std::move(items_);
  }

 private:
  // Of the first frame, which is turned as the file has it.
  Status choose_size(ImageSize first) {
    ASSIGN_OR_RETURN(size_, video_size(frames_, first, patches_));
    const std::size_t of_group = static_cast<std::size_t>(patches_.temporal_patch_size) * 3 *
                                 static_cast<std::size_t>(size_.width) * static_cast<std::size_t>(size_.height);
    const std::size_t bytes = times_.size() * of_group;
    if (bytes <= wire::kMaxPromptMediaBytes && of_group + kPackHeadBytes <= wire::kMaxMediaBytes) return ok_status();
    return error(StatusCode::kTooLarge, "its {} frames of {} x {} pixels have {} bytes; wanted at most {}", frames_,
                 size_.width, size_.height, bytes, wire::kMaxPromptMediaBytes);
  }

  void end_group() {
    PromptItem item{.label = fmt::format("<{:.1f} seconds>", times_[items_.size()]), .continues = !items_.empty()};
    wire::PromptMedia& media = item.media;
    media.grid_t = 1;
    media.grid_h = size_.height / patches_.patch_size;
    media.grid_w = size_.width / patches_.patch_size;
    media.rows = media.grid_h * media.grid_w / (patches_.merge_size * patches_.merge_size);
    media.bytes.bytes = pack_frames(group_);
    media.digest.bytes = media_digest(media);
    items_.push_back(std::move(item));
    group_.clear();
  }

  const PatchConfig& patches_;
  const int frames_;
  const std::vector<double> times_;  // of the groups
  ImageSize size_;
  std::vector<Image> group_;  // under way
  std::vector<PromptItem> items_;
};

}  // namespace

Result<std::vector<PromptItem>> read_video(const std::string& bytes, const VideoFacts& facts, const VideoLimits& limits,
                                           const Cancelled& cancelled) {
  const std::span<const uint8_t> file(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  ASSIGN_OR_RETURN(const VideoInfo info, probe_video(file, limits, cancelled));
  const std::vector<int64_t> indices = sample_frames(info.frames, info.fps, facts.sampling);
  std::vector<double> times = group_times(indices, info.fps, facts.patches.temporal_patch_size);
  if (times.size() > wire::kMaxPromptMedia) {
    return invalid_argument("the model looks at {} of its {} frames, in groups of {}; wanted at most {} groups",
                            indices.size(), info.frames, facts.patches.temporal_patch_size, wire::kMaxPromptMedia);
  }
  GroupMaker groups(facts, indices.size(), std::move(times));
  RETURN_IF_ERROR(
      decode_frames(file, indices, limits, cancelled, [&](Image frame) { return groups.add(std::move(frame)); }));
  return groups.finish();
}

}  // namespace millrace
