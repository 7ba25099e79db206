// One page of metrics for a scraper, made of those of several servers: each series gets the label `model`.
// Thread safety: pure function.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace millrace {

// `pages`: (model, text format 0.0.4). A family stands once, with the help of the first page that has it.
std::string merge_metrics(const std::vector<std::pair<std::string, std::string>>& pages);

}  // namespace millrace
