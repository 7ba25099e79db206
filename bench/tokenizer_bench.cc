// How fast text becomes token ids, one thread: megabytes a second of UTF-8, the whole file as one text and as its
// lines.
//
//   tokenizer_bench MODEL_DIR TEXT_FILE [rounds=5]
//
// bench/tokenizer_peer.py measures Hugging Face's tokenizers with the same file in the same way. Figures by CPU time.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <vector>

#include "text/tokenizer.h"

namespace {

double cpu_s() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

int main(int argc, char** argv) {
  using namespace millrace;
  if (argc < 3) return fmt::print(stderr, "tokenizer_bench MODEL_DIR TEXT_FILE [rounds]\n"), 2;
  const int rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 5;
  auto tokenizer = Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) return fmt::print(stderr, "{}\n", tokenizer.status().to_string()), 2;
  std::ifstream file(argv[2], std::ios::binary);
  std::stringstream all;
  all << file.rdbuf();
  const std::string text = all.str();
  std::vector<std::string> lines;
  for (std::string line; std::getline(all, line);) lines.push_back(line + "\n");
  if (text.empty()) return fmt::print(stderr, "{}: cannot be read, or is empty\n", argv[2]), 2;
  const auto measure = [&](const char* what, const std::vector<std::string>& texts) {
    std::vector<double> rates;
    std::size_t tokens = 0;
    for (int round = 0; round < rounds; ++round) {
      tokens = 0;
      const double begin = cpu_s();
      for (const std::string& one : texts) {
        const auto ids = (*tokenizer)->encode(one);
        if (!ids.ok()) std::exit(2);
        tokens += ids->size();
      }
      rates.push_back(static_cast<double>(text.size()) / 1e6 / (cpu_s() - begin));
    }
    std::sort(rates.begin(), rates.end());
    fmt::print("{:<12} {:.2f} MB/s, {} tokens\n", what, rates[rates.size() / 2], tokens);
  };
  measure("whole", {text});
  measure("lines", lines);
  return 0;
}
