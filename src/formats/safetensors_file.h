// SafetensorsFile: writes a safetensors file from its first byte to its last: the header at once, from what will be in
// it, then the bytes of each tensor in the same sequence.
//
//   ASSIGN_OR_RETURN(auto file, SafetensorsFile::create(path, entries));
//   for each entry: file.write(its bytes);      in as many parts as one likes
//   RETURN_IF_ERROR(file.finish());             on the disk
//
// Owner: its creator. Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/safetensors.h"

namespace millrace {

// Length and text of the header of a file with these tensors, in this sequence: `begin` and `end` are not looked at.
// Padded as the reference writer does, so that the data behind it is aligned to 8 bytes.
std::string safetensors_header(const std::vector<SafetensorsEntry>& tensors);

class SafetensorsFile {
 public:
  // kConflict: the file is there already. Others name the path and the reason; kResourceExhausted: the disk is full.
  static Result<SafetensorsFile> create(std::string path, const std::vector<SafetensorsEntry>& tensors);

  Status write(std::span<const std::byte> bytes);
  // CHECK: every byte that the header announced was written.
  Status finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  SafetensorsFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  uint64_t missing_ = 0;  // bytes
};

// Copies a regular file, and has its bytes on the disk. kNotFound: there is none.
Status copy_to_disk(const std::string& from, const std::string& to);
// Makes a file of this text, on the disk.
Status write_to_disk(std::string_view text, const std::string& to);
// Has the names in a folder on the disk, where the system can.
void sync_folder(const std::string& folder);

}  // namespace millrace
