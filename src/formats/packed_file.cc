#include "formats/packed_file.h"

#include <algorithm>
#include <charconv>
#include <mutex>

#include "base/json.h"
#include "base/xxh3.h"
#include "formats/safetensors.h"

namespace millrace {
namespace {

constexpr int64_t kSumBytes = 1 << 20;  // fits a level-2 cache: what was read is summed where it lies
constexpr std::string_view kRunKey = "run:";

// Of one part of a run after the other, in any order; then of all of them.
class PartSums {
 public:
  explicit PartSums(std::size_t size_bytes)
      : size_(static_cast<int64_t>(size_bytes)),
        sums_(static_cast<std::size_t>(std::max<int64_t>((size_ + kSumBytes - 1) / kSumBytes, 1))) {}
  int64_t count() const { return static_cast<int64_t>(sums_.size()); }
  std::size_t begin(int64_t part) const { return static_cast<std::size_t>(part * kSumBytes); }
  std::size_t size(int64_t part) const {
    return static_cast<std::size_t>(std::min(kSumBytes, size_ - part * kSumBytes));
  }
  void set(int64_t part, std::span<const std::byte> bytes) {
    sums_[static_cast<std::size_t>(part)] = XXH3_64bits(bytes.data(), bytes.size());
    clear_upper_vectors();
  }
  uint64_t all(uint64_t seed) const {
    return XXH3_64bits_withSeed(sums_.data(), sums_.size() * sizeof(uint64_t), seed ^ static_cast<uint64_t>(size_));
  }

 private:
  const int64_t size_;
  std::vector<uint64_t> sums_;
};

// Binds a run's sum to what it stands for. No part holds the character between them.
uint64_t seed_of(std::string_view key, std::string_view name, std::string_view made_of) {
  const std::string text = fmt::format("{}\n{}\n{}", key, name, made_of);
  return XXH3_64bits(text.data(), text.size());
}

}  // namespace

uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed, ThreadPool& pool) {
  PartSums sums(bytes.size());
  pool.parallel_for(sums.count(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) sums.set(i, bytes.subspan(sums.begin(i), sums.size(i)));
  });
  return sums.all(seed);
}

uint64_t packed_run_sum(const std::string& key, const PackedRun& run, ThreadPool& pool) {
  return checksum(run.bytes, seed_of(key, run.name, run.made_of), pool);
}

Result<PackedFile> PackedFile::open(const std::string& path, const std::string& key) {
  PackedFile out;
  ASSIGN_OR_RETURN(out.file_, MappedFile::open(path));
  RETURN_IF_ERROR(out.read_header(key));
  return out;
}

Status PackedFile::read_header(const std::string& key) {
  ASSIGN_OR_RETURN(SafetensorsHeader header, parse_safetensors(file_.bytes(), path()));
  const auto value = [&header](const std::string& name) -> std::string_view {
    const auto at = header.metadata.find(name);
    return at == header.metadata.end() ? std::string_view() : at->second;
  };
  if (value("format") != kPackedFormat) {
    return invalid_argument("{}: its format is {}; wanted {}", path(), quoted_name(value("format")), kPackedFormat);
  }
  if (value("key") != key) {
    return invalid_argument("{}: its key is {}; wanted {}", path(), quoted_name(value("key")), key);
  }
  key_ = key;
  source_ = value("source");
  for (const SafetensorsEntry& entry : header.tensors) {
    const std::string_view text = value(std::string(kRunKey) + entry.name);
    const std::size_t space = std::min(text.find(' '), text.size());
    Run run{.made_of = std::string(text.substr(0, space)),
            .begin = header.data_start + entry.begin,
            .size_bytes = entry.end - entry.begin};
    const std::string_view sum = text.substr(std::min(space + 1, text.size()));
    const auto [end, code] = std::from_chars(sum.data(), sum.data() + sum.size(), run.sum, 16);
    if (sum.empty() || code != std::errc() || end != sum.data() + sum.size()) {
      return invalid_argument("{}: the entry of {} is {}; wanted what it was made of and a checksum", path(),
                              quoted_name(entry.name), quoted_name(text));
    }
    runs_.emplace(entry.name, std::move(run));
  }
  return ok_status();
}

const PackedFile::Run* PackedFile::find(std::string_view name) const {
  const auto at = runs_.find(name);
  return at == runs_.end() ? nullptr : &at->second;
}

Status PackedFile::read_run(std::string_view name, const Run& run, std::span<std::byte> to, ThreadPool& pool) const {
  CHECK(to.size() == run.size_bytes);
  PartSums sums(to.size());
  std::mutex mutex;
  Status failure;
  pool.parallel_for(sums.count(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const auto part = to.subspan(sums.begin(i), sums.size(i));
      const Status status = file_.read(run.begin + sums.begin(i), part);
      sums.set(i, part);
      if (status.ok()) continue;
      const std::lock_guard lock(mutex);
      failure = status;
    }
  });
  RETURN_IF_ERROR(failure);
  const uint64_t seen = sums.all(seed_of(key_, name, run.made_of));
  if (seen == run.sum) return ok_status();
  return invalid_argument("{}: the checksum of {} is {:016x}; wanted {:016x}, that of what was written", path(),
                          quoted_name(name), seen, run.sum);
}

}  // namespace millrace
