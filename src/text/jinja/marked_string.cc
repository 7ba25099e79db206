#include "text/jinja/marked_string.h"

namespace millrace::jinja {

void MarkedString::truncate(size_t size) {
  if (size >= text_.size()) return;
  text_.resize(size);
  while (!runs_.empty() && (runs_.size() > 1 ? runs_[runs_.size() - 2].end : 0) >= size) runs_.pop_back();
  if (!runs_.empty()) runs_.back().end = size;
}

std::vector<Segment> MarkedString::segments() const {
  std::vector<Segment> out;
  out.reserve(runs_.size());
  for_each_run(0, size(), [&](std::string_view run, bool trusted) { out.push_back({std::string(run), trusted}); });
  return out;
}

}  // namespace millrace::jinja
