#include "api/model_summary.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <map>
#include <vector>

#include "formats/model_config.h"
#include "formats/weights.h"

namespace millrace::api {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code failed;
  if (!fs::is_directory(path, failed)) return {path};
  std::vector<fs::path> out;
  for (auto entry = fs::directory_iterator(path, failed); !failed && entry != fs::directory_iterator();
       entry.increment(failed)) {
    if (entry->is_regular_file(failed)) out.push_back(entry->path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void read_files(const std::string& path, ModelSummary& out) {
  std::string listed;
  for (const fs::path& file : files_of(path)) {
    std::error_code failed;
    const uintmax_t size = fs::file_size(file, failed);
    const fs::file_time_type time = fs::last_write_time(file, failed);
    if (failed) continue;
    const auto since = std::chrono::file_clock::to_sys(time).time_since_epoch();
    const int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(since).count();
    out.modified = std::max(out.modified, seconds);
    listed += fmt::format("{} {} {}\n", file.filename().string(), size, seconds);
  }
  out.digest = sha256_of(listed);
}

// "BF16", "Q8_0": as Ollama spells types.
std::string common_type(const WeightStore& store) {
  std::map<std::string, uint64_t> bytes;
  for (const std::string& name : store.names()) {
    const SafetensorsEntry* entry = store.find(name);
    if (entry != nullptr) bytes[std::string(dtype_name(entry->dtype))] += entry->end - entry->begin;
  }
  std::string out;
  uint64_t most = 0;
  for (const auto& [name, count] : bytes) {
    if (count > most) out = name, most = count;
  }
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return out;
}

}  // namespace

std::string sha256_of(const std::string& text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::string out;
  for (const unsigned char byte : digest) out += fmt::format("{:02x}", byte);
  return out;
}

ModelSummary summarize_model(const std::string& path) {
  ModelSummary out;
  read_files(path, out);
  const auto dir = open_model_dir(path);
  if (!dir.ok()) return out;
  out.format = dir->gguf.empty() ? "safetensors" : "gguf";
  out.parameters = parameter_count(dir->config);
  const auto store = WeightStore::open(path);
  if (!store.ok()) return out;
  out.bytes = store->total_bytes();
  if (dir->config.vision || dir->config.audio) out.parameters = store->total_elements();  // the towers' too
  out.quantization = common_type(*store);
  return out;
}

}  // namespace millrace::api
