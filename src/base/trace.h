// Trace: one recorder of spans for the process, written as Chrome trace JSON (chrome://tracing, ui.perfetto.dev).
//
//   trace::Span span("plan", "scheduler");
//   span.note("rows", rows);
//
// While nothing is recorded a span costs one relaxed load of an atomic. While something is, each thread writes to a
// buffer of its own for kMaxTraceEvents; what comes after that is counted and left out. Names, categories and
// keys are string literals: only their addresses are kept.
//
// A recording belongs to a session: a folder, which receives one file a process. Stages that share a process may all
// begin and end the same session; another session meanwhile is a conflict.
//
// Times are of CLOCK_MONOTONIC, so the files of all processes of one machine fit together (merge_traces).
// Thread safety: all functions from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace millrace::trace {

inline constexpr std::size_t kMaxTraceEvents = 1 << 16;  // of one thread
inline constexpr std::size_t kMaxTraceThreads = 256;     // further threads are not recorded
inline constexpr std::size_t kMaxTraceFiles = 256;       // merged at once
inline constexpr uint64_t kMaxTraceBytes = 1ull << 30;   // of all files that are merged
inline constexpr std::size_t kMaxTraceLineBytes = 1024;  // of one event

namespace internal {
extern std::atomic<bool> g_recording;
void add_span(const char* name, const char* category, int64_t begin_ns, const char* key, int64_t value);
}  // namespace internal

inline bool recording() { return internal::g_recording.load(std::memory_order_relaxed); }

// The calling thread and the process, for a reader of the trace. A literal; may be called at any time.
void name_thread(const char* name);
void name_process(const std::string& name);

// From its construction to its end, on one thread; spans of a thread nest. One that begins before the recording, or
// ends after it, is not recorded.
class Span {
 public:
  Span(const char* name, const char* category) : name_(name), category_(category) {
    if (recording()) begin_ns_ = monotonic_ns();
  }
  ~Span() { end(); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  // One number, shown with the span; the last one counts.
  void note(const char* key, int64_t value) {
    key_ = key;
    value_ = value;
  }
  void end() {
    if (begin_ns_ != 0 && recording()) internal::add_span(name_, category_, begin_ns_, key_, value_);
    begin_ns_ = 0;
  }

 private:
  const char* const name_;
  const char* const category_;
  const char* key_ = nullptr;
  int64_t value_ = 0;
  int64_t begin_ns_ = 0;  // 0: not recorded
};

// The begin and the end of something that is no one thread's, identified by `id`.
void async_begin(const char* name, const char* category, uint64_t id);
void async_end(const char* name, const char* category, uint64_t id);

// Begins to record. Of the same session once more: OK, nothing changes. kConflict while another one records.
Status start(const std::string& session_folder);

// Ends the recording and writes "<folder>/<pid>.json" (mode 0600; never over an existing file). Of the session that
// ended last: the same path again. kConflict when another session records, or none. The path.
Result<std::string> stop(const std::string& session_folder);

// One trace of the files of several processes, at `out`, which must not exist yet. kNotFound without any readable file.
Status merge_traces(const std::vector<std::string>& files, const std::string& out);

}  // namespace millrace::trace
