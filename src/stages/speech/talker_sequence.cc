#include "stages/speech/talker_sequence.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

int32_t first_media(const std::vector<SpokenRow>& rows) {
  const auto first = std::ranges::find_if(rows, [](const SpokenRow& row) { return row.media != kNoId; });
  return first == rows.end() ? INT32_MAX : static_cast<int32_t>(first - rows.begin());
}

}  // namespace

TalkerSequence::TalkerSequence(SpokenTurn turn, const SpokenTurnIds& ids, int groups, CodeDraws draws)
    : prompt_(std::move(turn.rows)),
      ids_(ids),
      groups_(static_cast<std::size_t>(groups)),
      draws_(draws),
      media_rows_(turn.media_rows),
      first_media_(first_media(prompt_)),
      text_(std::move(turn.text)) {}

void TalkerSequence::add_text(std::span<const int32_t> ids) {
  const std::lock_guard lock(mutex_);
  text_.insert(text_.end(), ids.begin(), ids.end());
}

void TalkerSequence::end_text() {
  const std::lock_guard lock(mutex_);
  text_ended_ = true;
}

bool TalkerSequence::any_text() const {
  const std::lock_guard lock(mutex_);
  return !text_.empty();
}

void TalkerSequence::set_media(SharedTensor rows) {
  const std::lock_guard lock(mutex_);
  if (!media_) media_ = std::move(rows);
}

bool TalkerSequence::waits_for_media() const {
  const std::lock_guard lock(mutex_);
  return media_rows_ > 0 && !media_;
}

const float* TalkerSequence::media_row(int32_t number) const {
  const std::lock_guard lock(mutex_);
  CHECK(media_ && number < media_rows_);
  return media_->view().as<float>().data() + number * media_->shape[1];
}

// All rows of the prompt but the last stand beside text that is known, or are media.
int32_t TalkerSequence::rows_ready() const {
  const std::lock_guard lock(mutex_);
  if (first_media_ != INT32_MAX && !media_) return first_media_;
  if (text_ended_) return text_.empty() ? prompt_rows() - 1 : INT32_MAX;
  return prompt_rows() - 1 + static_cast<int32_t>(text_.size());
}

std::size_t TalkerSequence::frame_at(int32_t position) const {
  CHECK(position >= prompt_rows());
  return static_cast<std::size_t>(position - prompt_rows()) * groups_;
}

std::vector<int32_t> TalkerSequence::codes(int32_t first, int32_t count) const {
  const std::lock_guard lock(mutex_);
  const auto begin = static_cast<std::size_t>(first) * groups_, size = static_cast<std::size_t>(count) * groups_;
  CHECK(begin + size <= frames_.size());
  const auto from = frames_.begin() + static_cast<std::ptrdiff_t>(begin);
  return {from, from + static_cast<std::ptrdiff_t>(size)};
}

bool TalkerSequence::read_row(int32_t position, SpokenRow& row, std::span<int32_t> rest) const {
  if (position < prompt_rows() - 1) {
    row = prompt_[static_cast<std::size_t>(position)];
    return false;
  }
  const std::lock_guard lock(mutex_);
  const auto text = static_cast<std::size_t>(position - (prompt_rows() - 1));
  row.text = text < text_.size() ? text_[text] : text == text_.size() ? ids_.tts_eos : ids_.tts_pad;
  if (text == 0) {
    row.code = prompt_.back().code;
    return false;
  }
  const std::size_t begin = frame_at(position);
  if (begin == frames_.size()) return false;  // the end was drawn meanwhile: nothing of this row is used
  CHECK(begin + groups_ <= frames_.size());
  row.code = frames_[begin];
  std::copy_n(frames_.begin() + static_cast<std::ptrdiff_t>(begin) + 1, groups_ - 1, rest.begin());
  return true;
}

// A frame may be set again, after a batch that failed: to the same codes. A batch that was planned before the end was
// drawn draws one behind it, which counts for nothing.
void TalkerSequence::set_frame(int32_t position, std::span<const int32_t> codes) {
  CHECK(codes.size() == groups_);
  const std::lock_guard lock(mutex_);
  const std::size_t begin = frame_at(position);
  if (begin > frames_.size()) return;
  frames_.resize(std::max(frames_.size(), begin + groups_));
  std::copy(codes.begin(), codes.end(), frames_.begin() + static_cast<std::ptrdiff_t>(begin));
}

}  // namespace millrace
