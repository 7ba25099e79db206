#include "hub/selection.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "formats/gguf_vision.h"
#include "formats/safetensors.h"
#include "formats/shard_names.h"

namespace millrace::hub {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kGguf = ".gguf";
constexpr std::size_t kMaxShown = 40;  // choices in a message

std::string upper(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::toupper(c); });
  return out;
}

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }
std::string_view folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? "" : path.substr(0, slash);
}

// "Q4_K_M", "IQ2_XXS", "BF16", "F16", "MXFP4", "TQ1_0".
bool is_quant(std::string_view word) {
  const auto digit_at = [&](std::size_t i) { return i < word.size() && word[i] >= '0' && word[i] <= '9'; };
  if (word == "BF16" || word == "F16" || word == "FP16" || word == "F32" || word == "FP32") return true;
  return (word.starts_with("Q") && digit_at(1)) || (word.starts_with("IQ") && digit_at(2)) ||
         (word.starts_with("TQ") && digit_at(2)) || word.starts_with("MXFP4");
}

// The quantization at the end of "NAME-Q4_K_M", "NAME.q8_0", "NAME-UD-Q4_K_XL"; "": none is there.
std::string quant_of(std::string_view stem) {
  const std::size_t cut = stem.find_last_of("-.");
  const std::string last = upper(stem.substr(cut == std::string_view::npos ? 0 : cut + 1));
  if (!is_quant(last)) return "";
  const std::string before = cut == std::string_view::npos ? "" : upper(stem.substr(0, cut));
  return before.ends_with("-UD") || before == "UD" ? "UD-" + last : last;
}

bool is_small_file(std::string_view name) {
  if (name == "additional_chat_templates/tool_use.jinja" || name == "chat_templates/tool_use.jinja") return true;
  // Modules of sentence-transformers, such as 1_Pooling and 1_LogitScore, whose folders modules.json names.
  if (base_name(name) == "config.json" && std::count(name.begin(), name.end(), '/') == 1) return true;
  if (name.find('/') != std::string_view::npos || name.ends_with(".index.json")) return false;
  return name.ends_with(".json") || name.ends_with(".jinja") || name == "merges.txt" || name == "vocab.txt" ||
         name == "tokenizer.model";
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string listed(const std::vector<GgufChoice>& choices) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(choices.size(), kMaxShown); ++i) names.push_back(choices[i].name);
  return fmt::format("{}{}", fmt::join(names, ", "), choices.size() > kMaxShown ? ", ..." : "");
}

// What is there instead, for the message.
std::string formats_of(const std::vector<std::string>& names) {
  std::set<std::string> found;
  for (const std::string& name : names) {
    const std::string_view base = base_name(name);
    const std::size_t dot = base.rfind('.');
    if (dot != std::string_view::npos && dot > 0 && found.size() < kMaxShown) found.emplace(base.substr(dot));
  }
  return found.empty() ? "nothing" : fmt::format("{}", fmt::join(found, ", "));
}

}  // namespace

std::vector<GgufChoice> gguf_choices(const std::vector<std::string>& names) {
  std::map<std::string, std::vector<std::string>> models;  // by path without .gguf and the number of a shard
  for (const std::string& name : names) {
    if (!name.ends_with(kGguf) || is_tower_file(base_name(name))) continue;
    const std::optional<GgufShardName> shard = parse_gguf_shard_name(name);
    if (!shard) {
      models[name.substr(0, name.size() - kGguf.size())] = {name};
    } else if (shard->number == 1) {
      std::vector<std::string> files;
      for (int i = 1; i <= shard->count && contains(names, shard->path(i)); ++i) files.push_back(shard->path(i));
      if (static_cast<int>(files.size()) == shard->count) models[shard->prefix] = std::move(files);
    }
  }
  std::vector<GgufChoice> out;
  for (auto& [path, files] : models) {
    const std::string quant = quant_of(base_name(path));
    out.push_back({quant.empty() ? std::string(base_name(path)) : quant, std::move(files)});
  }
  // Several models of one quantization are named by their files.
  for (GgufChoice& one : out) {
    const auto same = std::count_if(out.begin(), out.end(), [&](const GgufChoice& o) { return o.name == one.name; });
    if (same < 2) continue;
    for (GgufChoice& other : out) {
      if (&other != &one && other.name == one.name) other.name = base_name(other.files[0]);
    }
    one.name = base_name(one.files[0]);
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

Result<GgufChoice> choose_gguf(const std::vector<GgufChoice>& choices, const std::string& quant,
                               const std::string& what) {
  const std::string wanted = upper(quant.empty() ? kCustomaryQuant : std::string_view(quant));
  if (quant.empty() && choices.size() == 1) return choices[0];
  const auto named = [&](const GgufChoice& one) {
    const std::string file = upper(base_name(one.files[0]));
    return upper(one.name) == wanted || file == wanted || file == wanted + ".GGUF";
  };
  std::vector<GgufChoice> found;
  std::copy_if(choices.begin(), choices.end(), std::back_inserter(found), named);
  if (found.empty() && !quant.empty()) {  // "Q4_K_XL" for UD-Q4_K_XL, "Q8_0" for files of two models
    std::copy_if(choices.begin(), choices.end(), std::back_inserter(found), [&](const GgufChoice& one) {
      std::string_view file = base_name(one.files[0]);
      const std::optional<GgufShardName> shard = parse_gguf_shard_name(file);
      const std::string stem = upper(shard ? shard->prefix : std::string(file.substr(0, file.size() - kGguf.size())));
      return stem.ends_with("-" + wanted) || stem.ends_with("." + wanted);
    });
  }
  if (found.size() == 1) return found[0];
  if (quant.empty()) {
    return invalid_argument("{} has {} GGUF models and no quantization was named; wanted one of {}: {}:{}", what,
                            choices.size(), listed(choices), what, choices[0].name);
  }
  if (found.empty()) {
    return error(StatusCode::kNotFound, "{} has no GGUF model {}; wanted one of {}", what, quant, listed(choices));
  }
  return invalid_argument("{} has {} GGUF models of {}; wanted one of {}", what, found.size(), quant, listed(found));
}

std::string choose_tower(const std::vector<std::string>& names, const std::string& file) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (is_tower_file(base_name(name)) && folder_of(name) == folder_of(file)) found.push_back(name);
  }
  if (found.empty()) return "";
  const auto rank = [](const std::string& name) {
    const std::string quant = quant_of(base_name(name).substr(0, base_name(name).size() - kGguf.size()));
    return quant == "F16" || quant == "FP16" ? 0 : quant == "BF16" ? 1 : 2;
  };
  return *std::min_element(found.begin(), found.end(), [&](const std::string& a, const std::string& b) {
    return std::pair(rank(a), a) < std::pair(rank(b), b);
  });
}

Result<Selection> select_files(const std::vector<std::string>& names, const std::string& quant,
                               const std::string& what) {
  Selection out;
  const std::vector<GgufChoice> choices = gguf_choices(names);
  const bool single = contains(names, kSingleFile), sharded = contains(names, kSafetensorsIndex);
  if ((single || sharded) && quant.empty()) {
    std::copy_if(names.begin(), names.end(), std::back_inserter(out.files), is_small_file);
    out.shards_by_index = !single;
    out.files.emplace_back(single ? kSingleFile : kSafetensorsIndex);
    return out;
  }
  if (choices.empty()) {
    if (single || sharded) {
      return invalid_argument("{} has no GGUF files, and {} was named; wanted {} without it", what, quant, what);
    }
    return error(StatusCode::kNotFound, "{} has files of {}; wanted model.safetensors, its shards with {}, or .gguf",
                 what, formats_of(names), kSafetensorsIndex);
  }
  ASSIGN_OR_RETURN(out.gguf, choose_gguf(choices, quant, what));
  if (std::string tower = choose_tower(names, out.gguf->files[0]); !tower.empty())
    out.files.push_back(std::move(tower));
  for (const char* name : {"preprocessor_config.json", "video_preprocessor_config.json"}) {
    if (contains(names, name)) out.files.emplace_back(name);
  }
  out.files.insert(out.files.end(), out.gguf->files.begin(), out.gguf->files.end());
  return out;
}

}  // namespace millrace::hub
