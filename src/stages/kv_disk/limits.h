// The named limits of KV pages on disk. Thread safety: constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::kv_disk {

inline constexpr int32_t kMinRestoredTokens = 64;               // fewer that the cache lacks are computed again
inline constexpr std::size_t kMaxRestores = 256;                // under way; more requests compute
inline constexpr std::size_t kRunBytes = std::size_t{8} << 20;  // read or saved at once, one page at least
inline constexpr int kMaxRuns = 2;                              // read and not in the cache yet, of one restore
inline constexpr int64_t kRestoreStallMs = 2'000;               // without a page a restore ends; the rest is computed
inline constexpr std::size_t kMaxSaves = 64;                    // prefixes that wait until they are cached
inline constexpr int64_t kSaveTimeoutMs = 120'000;              // and are given up then
inline constexpr std::size_t kSavedBytesPerStep = std::size_t{4} << 20;  // copied between two steps, one run more
inline constexpr std::size_t kMaxUnsavedBytes = std::size_t{64} << 20;   // copied and not written yet
inline constexpr std::size_t kMaxSeenPages = 1u << 16;                   // whose first use is remembered
inline constexpr int64_t kRefreshMs = 600'000;  // pages in use are marked as used on disk so often
inline constexpr std::size_t kMarkCost = 4096;  // of kSavedBytesPerStep, for a page that is there already
inline constexpr int64_t kWarnMs = 60'000;      // between two warnings of a folder that fails
inline constexpr int64_t kStaleFileS = 60;      // a file that a process left unfinished is removed after this time

}  // namespace millrace::kv_disk
