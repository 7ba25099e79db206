#include "stages/kv_disk/page_io.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "stages/kv_disk/limits.h"
#include "stages/stage.h"

namespace millrace::kv_disk {

PageIo::PageIo(std::unique_ptr<PageFolder> folder) : folder_(std::move(folder)), thread_([this] { run(); }) {}

PageIo::~PageIo() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    loads_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

void PageIo::load(uint64_t ticket, std::vector<PageName> pages, std::size_t page_bytes) {
  {
    std::lock_guard lock(mutex_);
    loads_.push_back({ticket, std::move(pages), page_bytes});
  }
  changed_.notify_all();
}

void PageIo::cancel(uint64_t ticket) {
  std::lock_guard lock(mutex_);
  std::erase_if(loads_, [ticket](const Load& load) { return load.ticket == ticket; });
}

std::vector<PageIo::Loaded> PageIo::take_loaded() {
  std::lock_guard lock(mutex_);
  return std::exchange(loaded_, {});
}

bool PageIo::has_capacity() const {
  std::lock_guard lock(mutex_);
  return unsaved_bytes_ < kMaxUnsavedBytes;
}

void PageIo::save(std::vector<PageName> pages, Buffer bytes) {
  const SharedBytes all(std::move(bytes));
  const std::size_t page_bytes = all.size_bytes() / pages.size();
  {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      saves_.push_back({std::move(pages[i]), all.slice(i * page_bytes, page_bytes)});
    }
    unsaved_bytes_ += all.size_bytes();
  }
  changed_.notify_all();
}

PageIo::Counters PageIo::counters() const {
  std::lock_guard lock(mutex_);
  Counters out = counters_;
  out.folder_bytes = folder_->bytes();
  return out;
}

void PageIo::run() {
  trace::name_thread("kv disk");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !loads_.empty() || !saves_.empty(); });
    if (!loads_.empty()) {
      const Load load = std::move(loads_.front());
      loads_.pop_front();
      lock.unlock();
      Loaded loaded = read(load);
      lock.lock();
      loaded_.push_back(std::move(loaded));
    } else if (!saves_.empty()) {
      const Save save = std::move(saves_.front());
      saves_.pop_front();
      lock.unlock();
      write(save);
      lock.lock();
      unsaved_bytes_ -= save.bytes.size_bytes();
    } else {
      return;
    }
  }
}

PageIo::Loaded PageIo::read(const Load& load) {
  Loaded out{.ticket = load.ticket};
  Buffer bytes(load.pages.size() * load.page_bytes);
  for (const PageName& page : load.pages) {
    const std::size_t at = static_cast<std::size_t>(out.pages) * load.page_bytes;
    out.status = folder_->read(page, {bytes.data() + at, load.page_bytes});
    if (!out.status.ok()) break;
    ++out.pages;
  }
  out.bytes = SharedBytes(std::move(bytes)).slice(0, static_cast<std::size_t>(out.pages) * load.page_bytes);
  return out;
}

// A folder that cannot be written (it is full, or gone) costs what is not saved, and a warning from time to time.
void PageIo::write(const Save& save) {
  const Status status = folder_->write(save.page, save.bytes.span());
  std::lock_guard lock(mutex_);
  ++(status.ok() ? counters_.saved_pages : counters_.failed_pages);
  const int64_t now_ms = monotonic_ms();
  if (status.ok() || (warned_ms_ != 0 && now_ms - warned_ms_ < kWarnMs)) return;
  warned_ms_ = now_ms;
  LOG_WARNING("a KV page was not saved ({} so far): {}", counters_.failed_pages, status.to_string());
}

}  // namespace millrace::kv_disk
