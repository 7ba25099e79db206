#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>

#include "base/status.h"

namespace millrace {
namespace {

// state_ = kOpenBit while a loop accepts threads, plus the number of threads that joined and have not left.
constexpr uint32_t kOpenBit = 1u << 31;
constexpr int kPausesPerClockRead = 16;  // a clock read costs about as much as a pause

void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns true as soon as done() is true, false when the spin time is over.
template <typename Done>
bool spin_until(Done done) {
  if (done()) return true;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(kSpinMicroseconds);
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      cpu_pause();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  CHECK(threads >= 1 && threads <= kMaxPoolThreads);
  threads_.reserve(static_cast<std::size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    threads_.emplace_back([this, worker] { worker_main(worker); });
  }
}

ThreadPool::~ThreadPool() {
  CHECK(!busy_.load(std::memory_order_acquire));  // a loop of another thread is in the middle of its chunks
  stopping_.store(true, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, Body body) {
  CHECK(grain >= 1);
  CHECK(!busy_.exchange(true, std::memory_order_acquire));  // a second caller, or a loop inside a loop
  loops_.store(loops_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (threads_.empty() || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) {
      next_.store(begin, std::memory_order_relaxed);
      body(begin, std::min(count, begin + grain), 0);
    }
    busy_.store(false, std::memory_order_release);
    return;
  }
  body_ = &body;
  count_ = count;
  grain_ = grain;
  next_.store(0, std::memory_order_relaxed);
  state_.store(kOpenBit, std::memory_order_release);  // publishes the fields above to whoever joins
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();

  run_chunks(0);

  // Every chunk is taken. Close the door, then wait for the threads that are still inside their last chunk.
  state_.fetch_and(~kOpenBit, std::memory_order_acq_rel);
  const auto all_left = [this] { return state_.load(std::memory_order_acquire) == 0; };
  if (!spin_until(all_left)) {
    for (uint32_t joined = state_.load(std::memory_order_acquire); joined != 0;
         joined = state_.load(std::memory_order_acquire)) {
      state_.wait(joined, std::memory_order_acquire);
    }
  }
  body_ = nullptr;
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::run_chunks(int worker) {
  const int64_t count = count_;
  const int64_t grain = grain_;
  const Body& body = *body_;
  for (;;) {
    const int64_t begin = next_.fetch_add(grain, std::memory_order_relaxed);
    if (begin >= count) return;
    body(begin, std::min(count, begin + grain), worker);
  }
}

// Joins the loop in progress, if it is open. The compare-and-swap that succeeds on an open state reads what the caller
// released, so the loop's fields are visible and stay unchanged until leave().
bool ThreadPool::try_join() {
  uint32_t state = state_.load(std::memory_order_acquire);
  while (state & kOpenBit) {
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

void ThreadPool::leave() {
  const uint32_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
  if (before == 1) state_.notify_one();  // closed, and this was the last thread inside
}

void ThreadPool::worker_main(int worker) {
  for (;;) {
    // Read the epoch first: whatever happens later changes it and ends the wait below. A loop that opens in between is
    // joined early, and its epoch then wakes this thread once more for nothing.
    const uint32_t seen_epoch = epoch_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_acquire)) return;
    if (try_join()) {
      run_chunks(worker);
      leave();
    }
    const auto changed = [&] { return epoch_.load(std::memory_order_acquire) != seen_epoch; };
    if (!spin_until(changed)) epoch_.wait(seen_epoch, std::memory_order_acquire);
  }
}

}  // namespace millrace
