#include "text/tools/marker_scanner.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace millrace {

MarkerScanner::MarkerScanner(std::vector<std::string> markers) : markers_(std::move(markers)) {
  for (const std::string& marker : markers_) {
    CHECK(!marker.empty() && marker.find(marker[0], 1) == std::string::npos);
    first_bytes_ += marker[0];
  }
}

MarkerScanner::Match MarkerScanner::match(std::string_view text, std::size_t& size) const {
  Match best = Match::kNone;
  for (const std::string& marker : markers_) {
    if (text.starts_with(marker)) {
      size = marker.size();
      return Match::kComplete;
    }
    if (std::string_view(marker).starts_with(text)) best = Match::kBegins;
  }
  return best;
}

void MarkerScanner::push(std::string_view text, std::vector<Symbol>& out) {
  const std::string joined = std::exchange(held_, {}).append(text);
  const std::string_view all = joined;
  const auto add_text = [&](std::size_t begin, std::size_t end) {
    if (begin < end) out.push_back({std::string(all.substr(begin, end - begin)), false});
  };
  std::size_t done = 0, at = 0;
  while (at < all.size()) {
    at = std::min(all.find_first_of(first_bytes_, at), all.size());
    if (at == all.size()) break;
    std::size_t size = 0;
    const Match found = match(all.substr(at), size);
    if (found == Match::kNone) {
      ++at;
      continue;
    }
    add_text(done, at);
    done = at;
    if (found == Match::kBegins) {
      held_ = all.substr(at);
      return;
    }
    out.push_back({std::string(all.substr(at, size)), true});
    CHECK(size > 0);  // so the scan moves on
    done = at += size;
  }
  add_text(done, all.size());
}

std::string MarkerScanner::take_held() { return std::exchange(held_, {}); }

}  // namespace millrace
