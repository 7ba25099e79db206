#include "app/pull_progress.h"

#include <unistd.h>

#include <algorithm>

#include "app/progress.h"
#include "app/units.h"
#include "base/log.h"

namespace millrace {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr int kPlainStepPercent = 25;

}  // namespace

PullProgressLine::PullProgressLine(std::FILE* out, std::string name)
    : out_(out), name_(std::move(name)), terminal_(::isatty(::fileno(out)) != 0) {}

void PullProgressLine::clear() {
  if (drawn_) std::fprintf(out_, "\r\033[K");
  drawn_ = false;
  std::fflush(out_);
}

void PullProgressLine::note(const std::string& text) {
  const std::lock_guard lock(mutex_);
  clear();
  std::fprintf(out_, "millrace: %s\n", log_line(text).c_str());
  std::fflush(out_);
}

void PullProgressLine::draw(const hub::PullProgress& progress, int percent) {
  const auto now = std::chrono::steady_clock::now();
  if (begun_ == std::chrono::steady_clock::time_point{}) begun_ = now, begun_bytes_ = progress.bytes_done;
  if (drawn_ && now < drawn_at_ + kRedraw && progress.files_done < progress.files) return;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  const uint64_t arrived = progress.bytes_done - std::min(progress.bytes_done, begun_bytes_);
  const std::string speed =
      seconds > 1 ? fmt::format(", {}/s", bytes_text(static_cast<uint64_t>(static_cast<double>(arrived) / seconds)))
                  : "";
  std::fprintf(out_, "\r\033[K%s %s of %s%s", progress_bar(percent).c_str(), bytes_text(progress.bytes_done).c_str(),
               bytes_text(progress.bytes).c_str(), speed.c_str());
  drawn_ = true, drawn_at_ = now;
  std::fflush(out_);
}

void PullProgressLine::update(const hub::PullProgress& progress) {
  const std::lock_guard lock(mutex_);
  const uint64_t done = std::min(progress.bytes_done, progress.bytes);
  const int percent = progress.bytes == 0 ? 100 : static_cast<int>(done * 100 / progress.bytes);
  if (terminal_) return draw(progress, percent);
  if (percent / kPlainStepPercent <= last_step_) return;
  last_step_ = percent / kPlainStepPercent;
  std::fprintf(out_, "millrace: pulling %s: %d%% of %s, %zu of %zu files\n", name_.c_str(), percent,
               bytes_text(progress.bytes).c_str(), progress.files_done, progress.files);
  std::fflush(out_);
}

}  // namespace millrace
