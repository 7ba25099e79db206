// Test support: a temporary directory and safetensors files written byte by byte. Thread safety: one thread.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::test_files {

// A fresh directory that goes away with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "millrace_formats_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  std::string write(std::string_view name, std::string_view bytes) const {
    std::ofstream(file(name), std::ios::binary) << bytes;
    return file(name);
  }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// header length + header + data.
inline std::string pack(std::string_view header, std::string_view data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(header.size() >> (8 * i) & 0xFF));
  return out.append(header).append(data);
}

inline std::string f32_bytes(const std::vector<float>& values) {
  std::string out(values.size() * 4, '\0');
  if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// One-dimensional F32 tensors, in the map's order. `pad` spaces follow the JSON, to choose the data's alignment.
inline std::string f32_file(const std::map<std::string, std::vector<float>>& tensors, std::size_t pad = 0) {
  std::string header = "{";
  std::string data;
  for (const auto& [name, values] : tensors) {
    if (header.size() > 1) header += ',';
    const std::size_t begin = data.size();
    data += f32_bytes(values);
    header += '"' + name + R"(":{"dtype":"F32","shape":[)" + std::to_string(values.size()) + R"(],"data_offsets":[)" +
              std::to_string(begin) + ',' + std::to_string(data.size()) + "]}";
  }
  return pack(header + "}" + std::string(pad, ' '), data);
}

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// One line, no control characters, and every one of the parts in it.
inline void expect_message(const std::string& message, const std::vector<std::string>& parts) {
  for (char c : message) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << message;
  EXPECT_LT(message.size(), 1000u);
  for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << message << "\n  " << part;
}

}  // namespace millrace::test_files
