// Where tests find the tokenizers and models of others: tests/data/README.md lists them. Stateless; any thread.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

namespace millrace {

// The folder of `name` ("tokenizers/qwen3", "models/stories260K"): of tests/data, expanded by CMake, or of
// MILLRACE_EXTRA_TEST_DATA. Where none holds it, the path that it would have in the last, which does not exist.
inline std::filesystem::path test_data(std::string_view name) {
  const char* extra = std::getenv("MILLRACE_EXTRA_TEST_DATA");
  const std::filesystem::path last = std::filesystem::path(extra ? extra : MILLRACE_EXTRA_TEST_DATA) / name;
  for (const std::filesystem::path& folder : {std::filesystem::path(MILLRACE_SOURCE_DIR "/tests/data") / name,
                                              std::filesystem::path(MILLRACE_TEST_DATA) / name, last}) {
    if (std::filesystem::exists(folder)) return folder;
  }
  return last;
}

// The reason for a skip.
inline std::string no_test_data(std::string_view name) {
  return std::string(name) +
         " is not in the repository (tests/data/README.md); MILLRACE_EXTRA_TEST_DATA can name a folder that holds it";
}

}  // namespace millrace
