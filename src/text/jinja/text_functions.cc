#include "text/jinja/text_functions.h"

#include <algorithm>

#include "text/jinja/code_points.h"

namespace millrace::jinja {
namespace {

bool strips(uint32_t c, std::optional<std::string_view> chars) {
  if (!chars) return is_space(c);
  for (size_t at = 0; at < chars->size();) {
    if (next_code_point(*chars, at) == c) return true;
  }
  return false;
}

// Split at whitespace runs, from either end.
std::vector<MarkedString> split_space(const MarkedString& source, int64_t limit, bool from_right, Budget& budget) {
  const std::string& text = source.text();
  std::vector<std::pair<size_t, size_t>> words;
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    if (is_space(next_code_point(text, at))) continue;
    size_t end = at;
    while (at < text.size() && !is_space(next_code_point(text, at))) end = at;
    words.emplace_back(begin, end);
  }
  budget.items(words.size());
  // With a limit, the words beyond it stay together: up to the last word's end, or from the first word's begin.
  auto keep = limit < 0 ? words.size() : static_cast<size_t>(limit);
  if (words.size() > keep + 1 && !from_right) {
    // Python keeps trailing whitespace of the rest.
    words[keep].second = text.size();
    words.resize(keep + 1);
  } else if (words.size() > keep + 1) {
    size_t first = words.size() - keep - 1;
    words[first].first = 0;
    words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(first));
  } else if (words.size() == keep + 1 && limit >= 0) {
    if (from_right) {
      words.front().first = 0;
    } else {
      words.back().second = text.size();
    }
  }
  std::vector<MarkedString> out;
  out.reserve(words.size());
  for (const auto& [begin, end] : words) out.push_back(source.range(begin, end));
  return out;
}

bool is_line_end(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

MarkedString strip(const MarkedString& source, std::optional<std::string_view> chars, Ends ends) {
  const std::string& text = source.text();
  size_t begin = 0, end = text.size();
  while (ends != Ends::kRight && begin < end) {
    size_t at = begin;
    if (!strips(next_code_point(text, at), chars)) break;
    begin = at;
  }
  while (ends != Ends::kLeft && end > begin) {
    size_t at = previous_boundary(text, end);
    size_t position = at;
    if (!strips(next_code_point(text, position), chars)) break;
    end = at;
  }
  return source.range(begin, end);
}

MarkedString replace(const MarkedString& source, std::string_view from, const MarkedString& to, int64_t limit,
                     Budget& budget) {
  const std::string& text = source.text();
  MarkedString out;
  size_t at = 0;
  auto add = [&](size_t begin, size_t end, bool with_replacement) {
    size_t size = out.size() + end - begin + (with_replacement ? to.size() : 0);
    if (size > budget.limits().max_string_bytes) {
      fail_limit("a string of {} bytes; the limit is {}", size, budget.limits().max_string_bytes);
    }
    out.append_range(source, begin, end);
    if (with_replacement) out.append(to);
    budget.steps();
  };
  if (from.empty()) {
    // Between all characters, and at both ends.
    for (; limit != 0; --limit) {
      add(at, at, true);
      if (at >= text.size()) break;
      size_t end = at;
      next_code_point(text, end);
      add(at, end, false);
      at = end;
    }
  } else {
    for (size_t found = text.find(from); found != std::string::npos && limit != 0;
         found = text.find(from, at), --limit) {
      add(at, found, true);
      at = found + from.size();
    }
  }
  add(at, text.size(), false);
  budget.string(out.size());
  return out;
}

std::vector<MarkedString> split(const MarkedString& source, std::optional<std::string_view> separator, int64_t limit,
                                bool from_right, Budget& budget) {
  const std::string& text = source.text();
  budget.string(text.size());
  if (!separator) return split_space(source, limit, from_right, budget);
  std::vector<size_t> cuts;
  if (from_right) {
    size_t end = text.size();
    while (limit != 0 && end >= separator->size()) {
      size_t found = text.rfind(*separator, end - separator->size());
      if (found == std::string::npos) break;
      cuts.push_back(found);
      end = found;
      --limit;
    }
    std::reverse(cuts.begin(), cuts.end());
  } else {
    for (size_t found = text.find(*separator); found != std::string::npos && limit != 0;
         found = text.find(*separator, found + separator->size()), --limit) {
      cuts.push_back(found);
    }
  }
  budget.items(cuts.size() + 1);
  std::vector<MarkedString> out;
  size_t at = 0;
  for (size_t cut : cuts) {
    out.push_back(source.range(at, cut));
    at = cut + separator->size();
  }
  out.push_back(source.range(at, text.size()));
  return out;
}

std::vector<MarkedString> split_lines(const MarkedString& source, bool keep_ends, Budget& budget) {
  const std::string& text = source.text();
  budget.string(text.size());
  std::vector<MarkedString> out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    uint32_t c = next_code_point(text, at);
    if (!is_line_end(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.push_back(source.range(begin, keep_ends ? at : end));
    begin = at;
  }
  if (begin < text.size()) out.push_back(source.range(begin, text.size()));
  budget.items(out.size());
  return out;
}

MarkedString join(const MarkedString& separator, const std::vector<MarkedString>& parts, Budget& budget) {
  size_t size = 0;
  for (const MarkedString& part : parts) size += part.size() + separator.size();
  budget.string(size);
  MarkedString out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(parts[i]);
  }
  return out;
}

MarkedString pad(const MarkedString& text, size_t width, Ends ends, const MarkedString& fill, Budget& budget) {
  size_t length = count_code_points(text.text());
  if (width <= length) return text;
  size_t missing = width - length;
  budget.repeated_string(fill.size(), missing);
  // Python's center: the odd one goes left when the width is odd.
  size_t left = ends == Ends::kLeft ? missing : ends == Ends::kRight ? 0 : missing / 2 + (missing & width & 1);
  MarkedString out;
  for (size_t i = 0; i < left; ++i) out.append(fill);
  out.append(text);
  for (size_t i = left; i < missing; ++i) out.append(fill);
  return out;
}

}  // namespace millrace::jinja
