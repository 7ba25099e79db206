// A string that remembers, byte range by byte range, whether the template wrote it (trusted) or the request did.
//
// Every operation that builds a string from others carries the marks along; comparisons look at the text alone.
// Invariants: runs are ascending, adjacent runs differ in trust, the last run ends at size(), no run is empty.
// Thread safety: a value.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/segment.h"

namespace millrace::jinja {

class MarkedString {
 public:
  MarkedString() = default;
  MarkedString(std::string text, bool trusted) : text_(std::move(text)) {
    if (!text_.empty()) runs_.push_back({text_.size(), trusted});
  }

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  bool any_untrusted() const { return runs_.size() > 1 || (runs_.size() == 1 && !runs_[0].trusted); }

  void append(std::string_view text, bool trusted) {
    if (text.empty()) return;
    text_.append(text);
    if (!runs_.empty() && runs_.back().trusted == trusted) {
      runs_.back().end = text_.size();
    } else {
      runs_.push_back({text_.size(), trusted});
    }
  }
  void append(const MarkedString& other) { append_range(other, 0, other.size()); }
  // Bytes [begin, end) of `other`, which is not *this.
  void append_range(const MarkedString& other, size_t begin, size_t end) {
    other.for_each_run(begin, end, [this](std::string_view run, bool trusted) { append(run, trusted); });
  }

  MarkedString range(size_t begin, size_t end) const {
    MarkedString out;
    out.append_range(*this, begin, end);
    return out;
  }

  // Calls fn(text, trusted) for each run's part within [begin, end).
  template <typename Fn>
  void for_each_run(size_t begin, size_t end, Fn fn) const {
    size_t at = begin;
    for (size_t i = run_at(begin); i < runs_.size() && at < end; ++i) {
      size_t stop = runs_[i].end < end ? runs_[i].end : end;
      fn(std::string_view(text_).substr(at, stop - at), runs_[i].trusted);
      at = stop;
    }
  }

  // The mark of the byte at `at`, which is less than size().
  bool trusted_at(size_t at) const { return runs_[run_at(at)].trusted; }

  // Drops everything from byte `size` on.
  void truncate(size_t size);

  std::vector<Segment> segments() const;

 private:
  struct Run {
    size_t end;
    bool trusted;
  };

  // The index of the run that holds byte `at`.
  size_t run_at(size_t at) const {
    size_t low = 0, high = runs_.size();
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (runs_[middle].end <= at) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  std::string text_;
  std::vector<Run> runs_;
};

}  // namespace millrace::jinja
