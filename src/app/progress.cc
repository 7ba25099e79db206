#include "app/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "app/signals.h"

namespace millrace {
namespace {

constexpr int kBarCells = 32;
constexpr int kPlainStepPercent = 25;  // a plain line at each quarter

}  // namespace

std::string progress_bar(int percent) {
  const int filled = percent * kBarCells / 100;
  return fmt::format("[{}{}] {:3}%", std::string(filled, '#'), std::string(kBarCells - filled, '.'), percent);
}

LoadingProgress::LoadingProgress(std::FILE* out) : out_(out), terminal_(::isatty(::fileno(out)) != 0) {}

void LoadingProgress::update(const wire::StageStatus& status) {
  if (status.state != wire::StageState::kLoading || status.message.empty()) return;
  const int percent = std::clamp(static_cast<int>(status.progress * 100), 0, 100);
  const int step = terminal_ ? 1 : kPlainStepPercent;
  if (status.message == last_what_ && percent / step == last_percent_ / step) return;
  last_what_ = status.message;
  last_percent_ = percent;
  if (terminal_) {
    std::fprintf(out_, "\r%-18s %s", status.message.c_str(), progress_bar(percent).c_str());
    drawn_ = true;
  } else {
    std::fprintf(out_, "millrace: %s %d%%\n", status.message.c_str(), percent);
  }
  std::fflush(out_);
}

void LoadingProgress::finish() {
  if (drawn_) std::fprintf(out_, "\r\033[K");
  drawn_ = false;
  std::fflush(out_);
}

WriteProgress show_until_signal(LoadingProgress& shown, std::string what, const sigset_t& signals) {
  return
      [&shown, signals, status = wire::StageStatus{.message = std::move(what)}](uint64_t done, uint64_t total) mutable {
        status.progress = static_cast<double>(done) / static_cast<double>(total);
        shown.update(status);
        return !stop_signal_came(signals);
      };
}

}  // namespace millrace
