// Texts as exec() and posix_spawn() want them. Thread safety: a pure function.
#pragma once

#include <string>
#include <vector>

namespace millrace {

// Ends with a null pointer. Good as long as `texts` is unchanged.
inline std::vector<char*> argv_of(std::vector<std::string>& texts) {
  std::vector<char*> out;
  out.reserve(texts.size() + 1);
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace millrace
