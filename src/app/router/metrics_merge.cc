#include "app/router/metrics_merge.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>

namespace millrace {
namespace {

struct Family {
  std::string head;  // its HELP and TYPE
  std::string series;
};

// As a label's value has it.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// `name{a="b"} 1` and `name 1` alike.
std::string labelled(std::string_view line, const std::string& label) {
  const std::size_t end = line.find_first_of("{ ");
  if (end == std::string_view::npos) return std::string(line);
  const bool has_labels = line[end] == '{';
  return std::string(line.substr(0, end)) + "{" + label + (has_labels ? "," : "}") +
         std::string(line.substr(has_labels ? end + 1 : end));
}

}  // namespace

std::string merge_metrics(const std::vector<std::pair<std::string, std::string>>& pages) {
  std::map<std::string, Family, std::less<>> families;
  std::vector<std::string> sequence;  // of the first page that has each
  for (const auto& [model, page] : pages) {
    const std::string label = "model=\"" + escaped(model) + "\"";
    Family* family = nullptr;
    bool known = false;  // from an earlier page
    for (std::size_t begin = 0; begin < page.size();) {
      const std::size_t end = std::min(page.find('\n', begin), page.size());
      const std::string_view line = std::string_view(page).substr(begin, end - begin);
      begin = end + 1;
      if (line.starts_with("# HELP ")) {
        const std::string name(line.substr(7, line.find(' ', 7) - 7));
        known = families.contains(name);
        family = &families[name];
        if (!known) sequence.push_back(name);
      }
      if (line.empty() || family == nullptr) continue;
      if (line.front() != '#') {
        family->series += labelled(line, label) + "\n";
      } else if (!known) {
        family->head += std::string(line) + "\n";
      }
    }
  }
  std::string out;
  for (const std::string& name : sequence) out += families[name].head + families[name].series;
  return out;
}

}  // namespace millrace
