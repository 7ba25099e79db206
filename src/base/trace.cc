#include "base/trace.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/clock.h"

namespace millrace::trace {
namespace {

struct Event {
  const char* name = nullptr;
  const char* category = nullptr;
  const char* key = nullptr;
  int64_t value = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;  // of a span
  uint64_t id = 0;     // of an async event
  char phase = 'X';
};

struct ThreadBuffer {
  std::mutex mutex;  // the thread against start() and stop(): hardly ever contended
  pid_t thread = 0;
  const char* thread_name = nullptr;
  std::vector<Event> events;
  uint64_t dropped = 0;
};

// Never destroyed: threads may end after main().
struct Recorder {
  std::mutex mutex;
  std::vector<std::shared_ptr<ThreadBuffer>> buffers;
  std::string process = "millrace";
  std::string session;       // that records; empty: none
  std::string last_session;  // that ended, and its file
  std::string last_path;
};

Recorder& recorder() {
  static auto* const instance = new Recorder();
  return *instance;
}

// This thread's buffer; null where there are too many threads.
ThreadBuffer* thread_buffer() {
  struct Slot {
    std::shared_ptr<ThreadBuffer> buffer;
    bool asked = false;
  };
  static thread_local Slot slot;
  if (slot.asked) return slot.buffer.get();
  slot.asked = true;
  Recorder& all = recorder();
  std::lock_guard lock(all.mutex);
  // The buffers of threads that ended, and whose events were written, are released.
  if (all.session.empty()) std::erase_if(all.buffers, [](const auto& buffer) { return buffer.use_count() == 1; });
  if (all.buffers.size() >= kMaxTraceThreads) return nullptr;
  slot.buffer = std::make_shared<ThreadBuffer>();
  slot.buffer->thread = ::gettid();
  all.buffers.push_back(slot.buffer);
  return slot.buffer.get();
}

void add(const Event& event) {
  ThreadBuffer* buffer = thread_buffer();
  if (buffer == nullptr) return;
  std::lock_guard lock(buffer->mutex);
  if (!recording()) return;  // stop() has taken the events
  if (buffer->events.size() >= kMaxTraceEvents) {
    ++buffer->dropped;
  } else {
    buffer->events.push_back(event);
  }
}

class File {
 public:
  static Result<File> create(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    std::FILE* file = fd < 0 ? nullptr : ::fdopen(fd, "w");
    if (file == nullptr) return internal_error("cannot make {}: {}", path, std::strerror(errno));
    std::fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", file);
    return File(file, path);
  }
  // One event, without a comma; the file puts one a line.
  void add(std::string_view event) {
    std::fputs(first_ ? "\n" : ",\n", file_.get());
    first_ = false;
    std::fwrite(event.data(), 1, event.size(), file_.get());
  }
  Status finish() {
    std::fputs("\n]}\n", file_.get());
    const bool bad = std::fflush(file_.get()) != 0 || std::ferror(file_.get()) != 0;
    if (bad) return internal_error("cannot write {}: {}", path_, std::strerror(errno));
    return ok_status();
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  File(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
  bool first_ = true;
};

std::string micros(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string event_json(const Event& event, pid_t process, pid_t thread) {
  std::string out = fmt::format(R"({{"name":"{}","cat":"{}","ph":"{}","pid":{},"tid":{},"ts":{})", event.name,
                                event.category, event.phase, process, thread, micros(event.begin_ns));
  if (event.phase == 'X') {
    out += fmt::format(R"(,"dur":{})", micros(event.end_ns - event.begin_ns));
  } else {
    out += fmt::format(R"(,"id":"{:#x}")", event.id);
  }
  if (event.key != nullptr) out += fmt::format(R"(,"args":{{"{}":{}}})", event.key, event.value);
  return out + "}";
}

std::string name_json(const char* what, pid_t process, pid_t thread, const std::string& name) {
  return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}}}})", what, process, thread,
                     name);
}

// With the recorder's lock held and nothing recording any more: no other thread looks at the events.
Status write_file(Recorder& all, const std::string& path) {
  auto file = File::create(path);
  const pid_t process = ::getpid();
  if (file.ok()) file->add(name_json("process_name", process, process, all.process));
  for (const auto& buffer : all.buffers) {
    std::vector<Event> events;
    uint64_t dropped = 0;
    {
      std::lock_guard lock(buffer->mutex);
      events.swap(buffer->events);
      std::swap(dropped, buffer->dropped);
    }
    if (events.empty() || !file.ok()) continue;
    const char* name = buffer->thread_name != nullptr ? buffer->thread_name : "thread";
    file->add(name_json("thread_name", process, buffer->thread,
                        dropped == 0 ? std::string(name) : fmt::format("{} ({} events left out)", name, dropped)));
    for (const Event& event : events) file->add(event_json(event, process, buffer->thread));
  }
  if (!file.ok()) return file.status();
  return file->finish();
}

}  // namespace

namespace internal {

std::atomic<bool> g_recording{false};

void add_span(const char* name, const char* category, int64_t begin_ns, const char* key, int64_t value) {
  add({.name = name, .category = category, .key = key, .value = value, .begin_ns = begin_ns, .end_ns = monotonic_ns()});
}

}  // namespace internal

void name_thread(const char* name) {
  ThreadBuffer* buffer = thread_buffer();
  if (buffer == nullptr) return;
  std::lock_guard lock(buffer->mutex);
  buffer->thread_name = name;
}

// Quotes and control characters are of no use in a name, and would have to be escaped.
void name_process(const std::string& name) {
  Recorder& all = recorder();
  std::lock_guard lock(all.mutex);
  all.process.clear();
  for (char c : name.substr(0, 64)) all.process += c < ' ' || c > '~' || c == '"' || c == '\\' ? '_' : c;
}

void async_begin(const char* name, const char* category, uint64_t id) {
  if (recording()) add({.name = name, .category = category, .begin_ns = monotonic_ns(), .id = id, .phase = 'b'});
}

void async_end(const char* name, const char* category, uint64_t id) {
  if (recording()) add({.name = name, .category = category, .begin_ns = monotonic_ns(), .id = id, .phase = 'e'});
}

Status start(const std::string& session_folder) {
  if (session_folder.empty()) return invalid_argument("no folder for the trace is named; wanted one");
  Recorder& all = recorder();
  std::lock_guard lock(all.mutex);
  if (all.session == session_folder) return ok_status();
  if (!all.session.empty()) return Status(StatusCode::kConflict, "a trace is being recorded already; stop it first");
  for (const auto& buffer : all.buffers) {
    std::lock_guard buffer_lock(buffer->mutex);
    buffer->events.clear();
    buffer->dropped = 0;
  }
  all.session = session_folder;
  internal::g_recording.store(true);
  return ok_status();
}

Result<std::string> stop(const std::string& session_folder) {
  Recorder& all = recorder();
  std::lock_guard lock(all.mutex);
  if (!session_folder.empty() && session_folder == all.last_session && all.session.empty()) return all.last_path;
  if (all.session.empty()) return Status(StatusCode::kConflict, "no trace is being recorded; start one first");
  if (all.session != session_folder) return Status(StatusCode::kConflict, "another trace is being recorded");
  internal::g_recording.store(false);
  all.last_session = std::exchange(all.session, "");
  all.last_path = fmt::format("{}/{}.json", session_folder, ::getpid());
  RETURN_IF_ERROR(write_file(all, all.last_path));
  return all.last_path;
}

Status merge_traces(const std::vector<std::string>& files, const std::string& out) {
  ASSIGN_OR_RETURN(File merged, File::create(out));
  uint64_t bytes = 0;
  std::size_t read = 0;
  char line[kMaxTraceLineBytes];
  for (std::size_t i = 0; i < std::min(files.size(), kMaxTraceFiles); ++i) {
    const int fd = ::open(files[i].c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    std::FILE* file = fd < 0 ? nullptr : ::fdopen(fd, "r");
    if (file == nullptr) continue;
    ++read;
    // One event a line, as File writes them; the first and the last lines hold none.
    while (bytes < kMaxTraceBytes && std::fgets(line, sizeof line, file) != nullptr) {
      std::string_view event(line);
      bytes += event.size();
      while (!event.empty() && (event.back() == '\n' || event.back() == ',')) event.remove_suffix(1);
      if (event.starts_with("{\"name\":") && event.ends_with("}")) merged.add(event);
    }
    std::fclose(file);
  }
  RETURN_IF_ERROR(merged.finish());
  if (read == 0) return error(StatusCode::kNotFound, "none of {} trace files can be read", files.size());
  return ok_status();
}

}  // namespace millrace::trace
