// How many JSON Schemas are served, how exactly, and how fast: the measure of MaskBench (github.com/guidance-ai/
// jsonschemabench), over its data or over files of the same form, {"schema", "tests": [{"data", "valid"}]}.
//
//   schema_bench TOKENIZER_DIR FOLDER [--every N] [--from N] [--no-masks] [--list]
//
// A schema passes where it compiles, every valid instance can be written and no invalid one. Each instance is tokenized
// as Python's json.dumps writes it, and a mask is made before each token, as a server does; with --no-masks only the
// instances' bytes are read. --list prints a line for each schema that does not pass. One thread; CPU time.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "text/tokenizer.h"

namespace {

using namespace millrace;
using Document = nlohmann::ordered_json;

struct Options {
  std::string tokenizer, folder;
  std::size_t every = 1, from = 0;
  bool masks = true, list = false;
};

struct Figures {
  std::size_t schemas = 0, passed = 0, unreadable = 0, instances = 0;
  std::size_t refused = 0, valid_rejected = 0, invalid_accepted = 0;  // schemas, by the worst that happened
  std::map<std::string, std::size_t> reasons;                         // of refusals, without their paths
  std::vector<double> compile_us, mask_us;
};

// Of this thread, on a processor: other programs do not count.
double cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// As json.dumps(value, ensure_ascii=False).
void write(const Document& value, std::string& out) {
  if (!value.is_structured()) {
    out += value.dump();
    return;
  }
  out += value.is_object() ? '{' : '[';
  bool first = true;
  for (const auto& [key, one] : value.items()) {
    if (!std::exchange(first, false)) out += ", ";
    if (value.is_object()) out += Document(key).dump() + ": ";
    write(one, out);
  }
  out += value.is_object() ? '}' : ']';
}

std::vector<std::string> vocabulary(const Tokenizer& tokenizer) {
  std::vector<std::string> out(static_cast<std::size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.has_token(id) && !tokenizer.is_added(id))
      out[static_cast<std::size_t>(id)] = tokenizer.token_bytes(id);
  }
  return out;
}

class Bench {
 public:
  Bench(Options options, std::shared_ptr<const Tokenizer> tokenizer, std::shared_ptr<const grammar::TokenTrie> trie)
      : options_(std::move(options)), tokenizer_(std::move(tokenizer)), trie_(std::move(trie)) {}

  void run(const std::filesystem::path& file) {
    ++figures_.schemas;
    std::ifstream in(file, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const Document document = Document::parse(text, nullptr, false);
    if (!document.is_object() || !document.contains("schema")) {
      ++figures_.unreadable;
      return list(file, "unreadable", "no JSON with a schema");
    }
    const std::string schema = document.at("schema").dump();
    if (options_.list) fmt::print(stderr, "{}\r", file.filename().string());
    const double begin = cpu_us();
    const auto rules = grammar::parse_json_schema(schema);
    const auto compiled = rules.ok() ? grammar::Grammar::compile(*rules)
                                     : Result<std::shared_ptr<const grammar::Grammar>>(rules.status());
    const double compile_us = cpu_us() - begin;
    if (!compiled.ok()) {
      ++figures_.refused;
      ++figures_.reasons[reason_of(compiled.status().message())];
      return list(file, "refused", compiled.status().message());
    }
    figures_.compile_us.push_back(compile_us);
    if (options_.list && compile_us > 50e3) list(file, "slow", fmt::format("compiled in {:.0f} ms", compile_us / 1e3));
    test(file, document, std::make_shared<grammar::Masks>(*compiled, trie_));
  }

  void report() {
    const auto share = [&](std::size_t count) {
      return 100.0 * static_cast<double>(count) / static_cast<double>(std::max<std::size_t>(1, figures_.schemas));
    };
    fmt::print("schemas {}, instances {}, unreadable {}\n", figures_.schemas, figures_.instances, figures_.unreadable);
    fmt::print("passed           {:6} {:6.2f} %\n", figures_.passed, share(figures_.passed));
    fmt::print("refused          {:6} {:6.2f} %\n", figures_.refused, share(figures_.refused));
    fmt::print("valid rejected   {:6} {:6.2f} %\n", figures_.valid_rejected, share(figures_.valid_rejected));
    fmt::print("invalid accepted {:6} {:6.2f} %\n", figures_.invalid_accepted, share(figures_.invalid_accepted));
    times("compile", figures_.compile_us);
    times("mask", figures_.mask_us);
    std::vector<std::pair<std::size_t, std::string>> reasons;
    for (const auto& [reason, count] : figures_.reasons) reasons.emplace_back(count, reason);
    std::sort(reasons.rbegin(), reasons.rend());
    for (const auto& [count, reason] : reasons) fmt::print("{:6} {}\n", count, reason);
  }

 private:
  void list(const std::filesystem::path& file, std::string_view what, std::string_view why) const {
    if (options_.list) fmt::print("{}\t{}\t{}\n", what, file.filename().string(), why);
  }

  // The keyword behind a path: "schema.properties.x.not is not served; ..." is "not is not served".
  static std::string reason_of(const std::string& message) {
    const std::string head = message.substr(0, message.find(';'));
    const std::size_t end = std::min(head.find(" is "), head.size());
    const std::size_t dot = head.rfind('.', end);
    return head.substr(dot == head.npos ? 0 : dot + 1, 90);
  }

  void test(const std::filesystem::path& file, const Document& document, std::shared_ptr<grammar::Masks> masks) {
    bool rejected = false, accepted = false;
    const Document tests = document.value("tests", Document::array());
    for (std::size_t i = 0; i < tests.size(); ++i) {
      ++figures_.instances;
      std::string text;
      write(tests[i].at("data"), text);
      const bool valid = tests[i].at("valid").get<bool>();
      std::size_t read = 0;
      const bool taken = options_.masks ? takes_tokens(masks, text) : takes_bytes(masks->states(), text, read);
      if (taken == valid) continue;
      (valid ? rejected : accepted) = true;
      list(file, valid ? "rejected" : "ACCEPTED",
           fmt::format("#{} behind {}", i, text.substr(std::max<std::size_t>(read, 60) - 60, 80)));
    }
    if (accepted) {
      ++figures_.invalid_accepted;
    } else if (rejected) {
      ++figures_.valid_rejected;
    } else {
      ++figures_.passed;
    }
  }

  static bool takes_bytes(grammar::StateTable& states, std::string_view text, std::size_t& read) {
    grammar::State state = states.start();
    for (read = 0; read < text.size() && state != grammar::kDeadState; ++read) {
      if (states.full()) state = states.keep_only(state);
      state = states.step(state, text.substr(read, 1));
    }
    return states.can_end(state) && !states.overflown();
  }

  bool takes_tokens(const std::shared_ptr<grammar::Masks>& masks, const std::string& text) {
    constexpr int32_t kEnd = 0;  // any token that spells no JSON would do: of the end, only the bit is read
    const auto ids = tokenizer_->encode(text);
    if (!ids.ok()) return false;
    grammar::Matcher matcher(masks);
    for (std::size_t i = 0; i <= ids->size(); ++i) {
      const bool end = i == ids->size();
      const std::span<const int32_t> before(ids->data(), i > 0 ? i - 1 : 0);
      const double begin = cpu_us();
      const auto mask = matcher.mask(before, i > 0 ? std::optional((*ids)[i - 1]) : std::nullopt,
                                     end ? std::span<const int32_t>(&kEnd, 1) : std::span<const int32_t>());
      if (!end) figures_.mask_us.push_back(cpu_us() - begin);
      if (!mask.ok() || !grammar::allows(*mask, end ? kEnd : (*ids)[i])) return false;
    }
    return true;
  }

  static void times(const char* what, std::vector<double>& us) {
    if (us.empty()) return;
    std::sort(us.begin(), us.end());
    double sum = 0;
    for (const double one : us) sum += one;
    const auto at = [&](double part) {
      return us[std::min(us.size() - 1, static_cast<std::size_t>(part * static_cast<double>(us.size())))];
    };
    fmt::print("{:8} {:8} times, us: average {:.1f}, p50 {:.1f}, p90 {:.1f}, p99 {:.1f}, p99.9 {:.1f}, most {:.1f}\n",
               what, us.size(), sum / static_cast<double>(us.size()), at(0.5), at(0.9), at(0.99), at(0.999), us.back());
  }

  const Options options_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::shared_ptr<const grammar::TokenTrie> trie_;
  Figures figures_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc < 3)
    return fmt::print(stderr, "schema_bench TOKENIZER_DIR FOLDER [--every N] [--from N] [--no-masks] [--list]\n"), 2;
  options.tokenizer = argv[1];
  options.folder = argv[2];
  for (int i = 3; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--no-masks")
      options.masks = false;
    else if (arg == "--list")
      options.list = true;
    else if (arg == "--every" && i + 1 < argc)
      options.every = std::max<std::size_t>(1, std::strtoul(argv[++i], nullptr, 10));
    else if (arg == "--from" && i + 1 < argc)
      options.from = std::strtoul(argv[++i], nullptr, 10);
    else
      return fmt::print(stderr, "{}: unknown option\n", arg), 2;
  }
  auto tokenizer = Tokenizer::load(options.tokenizer);
  if (!tokenizer.ok()) return fmt::print(stderr, "{}\n", tokenizer.status().to_string()), 2;
  auto trie = grammar::TokenTrie::build(vocabulary(**tokenizer));
  if (!trie.ok()) return fmt::print(stderr, "{}\n", trie.status().to_string()), 2;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(options.folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Bench bench(options, *tokenizer, *trie);
  for (std::size_t i = options.from; i < files.size(); i += options.every) bench.run(files[i]);
  bench.report();
  return 0;
}
