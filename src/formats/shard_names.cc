#include "formats/shard_names.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"

namespace millrace {
namespace {

Status check_shard_name(std::string_view name, const std::string& index_path) {
  const bool plain = !name.empty() && name.size() <= 255 && name != "." && name.find("..") == std::string_view::npos &&
                     name.find('/') == std::string_view::npos && name.find('\\') == std::string_view::npos &&
                     name.find('\0') == std::string_view::npos;
  if (plain && name.ends_with(".safetensors")) return ok_status();
  return invalid_argument(
      "{}: names the shard {}; wanted a file name that ends with .safetensors, without path separators or '..'",
      index_path, quoted_name(name));
}

std::optional<int> five_digits(std::string_view text) {
  int value = 0;
  if (text.size() != 5) return std::nullopt;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size() && value > 0 ? std::optional<int>(value)
                                                                              : std::nullopt;
}

}  // namespace

Result<std::set<std::string>> shard_names(const Json& index, const std::string& path) {
  const Json* map = index.is_object() ? json_find(index, "weight_map") : nullptr;
  if (map == nullptr || !map->is_object() || map->empty()) {
    return invalid_argument("{}: has no weight_map; wanted an object of tensor name to shard file name", path);
  }
  std::set<std::string> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) {
      return invalid_argument("{}: weight_map[{}] is of type {}; wanted a shard's file name", path, quoted_name(name),
                              json_type_name(file));
    }
    RETURN_IF_ERROR(check_shard_name(file.get_ref<const std::string&>(), path));
    files.insert(file.get<std::string>());
    if (files.size() > kMaxShards) {
      return error(StatusCode::kTooLarge, "{}: names over {} shards; wanted at most that", path, kMaxShards);
    }
  }
  return files;
}

std::string GgufShardName::path(int i) const { return fmt::format("{}-{:05d}-of-{:05d}.gguf", prefix, i, count); }

std::optional<GgufShardName> parse_gguf_shard_name(std::string_view path) {
  constexpr std::string_view kSuffix = ".gguf", kOf = "-of-";
  constexpr std::size_t kTail = 1 + 5 + kOf.size() + 5;  // "-00001-of-00002"
  if (!path.ends_with(kSuffix)) return std::nullopt;
  path.remove_suffix(kSuffix.size());
  if (path.size() <= kTail) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kTail);
  const std::optional<int> number = five_digits(tail.substr(1, 5)), count = five_digits(tail.substr(tail.size() - 5));
  if (tail[0] != '-' || tail.substr(6, kOf.size()) != kOf || !number || !count || *number > *count) return std::nullopt;
  return GgufShardName{std::string(path.substr(0, path.size() - kTail)), *number, *count};
}

}  // namespace millrace
