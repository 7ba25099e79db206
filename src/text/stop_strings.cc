#include "text/stop_strings.h"

#include <algorithm>

namespace millrace {
namespace {

// The failure function of Knuth, Morris and Pratt, "Fast Pattern Matching in Strings" (1977).
std::vector<uint16_t> borders(std::string_view text) {
  std::vector<uint16_t> border(text.size());
  for (size_t i = 1; i < text.size(); ++i) {
    size_t length = border[i - 1];
    while (length > 0 && text[length] != text[i]) length = border[length - 1];
    if (text[length] == text[i]) ++length;
    border[i] = static_cast<uint16_t>(length);
  }
  return border;
}

}  // namespace

Result<StopStrings> StopStrings::create(std::vector<std::string> stops, bool include_stop) {
  if (stops.size() > kMaxStopStrings) {
    return invalid_argument("stop has {} strings; wanted at most {}", stops.size(), kMaxStopStrings);
  }
  StopStrings result;
  result.include_stop_ = include_stop;
  for (std::string& stop : stops) {
    if (stop.empty()) return invalid_argument("a stop string is empty; wanted at least one byte");
    if (stop.size() > kMaxStopStringBytes) {
      return invalid_argument("a stop string has {} bytes; wanted at most {}", stop.size(), kMaxStopStringBytes);
    }
    std::vector<uint16_t> border = borders(stop);
    result.patterns_.push_back({std::move(stop), std::move(border), 0});
  }
  return result;
}

StopStrings::Output StopStrings::push(std::string_view text) {
  Output out;
  if (matched_) return out;
  const size_t held_before = held_.size();
  held_ += text;
  size_t open = 0;  // the longest prefix of a stop string that the text so far ends with
  for (size_t i = held_before; i < held_.size(); ++i) {
    open = 0;
    const Pattern* longest = nullptr;
    for (Pattern& pattern : patterns_) {
      size_t& state = pattern.state;
      while (state > 0 && pattern.text[state] != held_[i]) state = pattern.border[state - 1];
      if (pattern.text[state] == held_[i]) ++state;
      open = std::max(open, state);
      if (state == pattern.text.size() && (longest == nullptr || state > longest->text.size())) longest = &pattern;
    }
    if (longest == nullptr) continue;
    matched_ = true;
    out.matched = true;
    out.matched_index = static_cast<size_t>(longest - patterns_.data());
    held_.resize(i + 1 - (include_stop_ ? 0 : longest->text.size()));
    out.emit = std::move(held_);
    held_.clear();
    return out;
  }
  if (text.empty()) return out;
  out.emit = held_.substr(0, held_.size() - open);
  held_.erase(0, held_.size() - open);
  return out;
}

std::string StopStrings::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  for (Pattern& pattern : patterns_) pattern.state = 0;
  return rest;
}

}  // namespace millrace
