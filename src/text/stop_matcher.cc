#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace millrace {

Result<StopMatcher> StopMatcher::create(std::vector<std::string> stops, std::vector<std::string> regexes,
                                        bool include_stop) {
  ASSIGN_OR_RETURN(StopStrings strings, StopStrings::create(stops, include_stop));
  ASSIGN_OR_RETURN(StopRegexes patterns, StopRegexes::create(regexes));
  StopMatcher result(std::move(strings), std::move(patterns));
  result.stops_ = std::move(stops);
  result.patterns_ = std::move(regexes);
  result.include_stop_ = include_stop;
  return result;
}

StopMatcher::Output StopMatcher::push(std::string_view text) {
  Output out;
  if (ended_) return out;
  if (regexes_.empty()) {
    StopStrings::Output found = strings_.push(text);
    out.emit = std::move(found.emit);
    ended_ = found.matched;
    if (found.matched) out.matched_text = stops_[found.matched_index];
    return out;
  }
  std::string joined;
  if (!character_.empty()) {
    joined = std::exchange(character_, {}).append(text);
    text = joined;
  }
  while (!text.empty() && !ended_) {
    const Utf8Unit unit = utf8_classify(text);
    if (unit.state == Utf8State::kPartial) {
      character_ = text;
      break;
    }
    push_character(text.substr(0, unit.size_bytes), out);
    text.remove_prefix(unit.size_bytes);
  }
  return out;
}

StopMatcher::Output StopMatcher::finish() {
  Output out;
  if (ended_) return out;
  if (!character_.empty()) push_character(std::exchange(character_, {}), out);
  if (ended_) return out;
  out.emit += std::exchange(released_, {}) + strings_.finish();
  ended_ = true;
  return out;
}

void StopMatcher::push_character(std::string_view character, Output& out) {
  CHECK(!character.empty() && !ended_);
  pushed_ += character.size();
  StopStrings::Output found = strings_.push(character);
  released_ += found.emit;
  auto match = regexes_.push_character(character);
  if (!found.matched && match.ok() && !*match) return release(out, regexes_.open_from());

  ended_ = true;
  size_t string_begin = pushed_;
  if (found.matched) {  // what is released ends where the stop string begins, or where it ends
    CHECK(!include_stop_ || emitted_ + released_.size() >= stops_[found.matched_index].size());
    string_begin = emitted_ + released_.size() - (include_stop_ ? stops_[found.matched_index].size() : 0);
  }
  if (match.ok() && *match && (!found.matched || (*match)->begin < string_begin)) {
    released_ += strings_.finish();
    release(out, include_stop_ ? (*match)->end : (*match)->begin);
    out.matched_text = patterns_[(*match)->index];
  } else if (found.matched) {
    release(out, pushed_);
    out.matched_text = stops_[found.matched_index];
  } else {
    released_ += strings_.finish();
    release(out, pushed_);
    out.status = match.status();
  }
}

// Emits what is released of the output's first `until` bytes.
void StopMatcher::release(Output& out, size_t until) {
  CHECK(until <= pushed_ && emitted_ <= pushed_);
  if (until <= emitted_) return;
  const size_t bytes = std::min(until - emitted_, released_.size());
  out.emit.append(released_, 0, bytes);
  released_.erase(0, bytes);
  emitted_ += bytes;
}

}  // namespace millrace
