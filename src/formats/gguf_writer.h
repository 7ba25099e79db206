// Writes a GGUF file (version 3): keys first, then the tensors' places, then their bytes in the order in which they
// were announced. The file appears under its name when finish() has succeeded; until then it is NAME.PID.part, which
// the writer creates (never over an existing file) and removes.
//
//   GgufWriter writer;
//   writer.add_string("general.architecture", "llama"); ... writer.add_tensor("output.weight", DType::kF16, {32, 8});
//   ... RETURN_IF_ERROR(writer.begin(path)); RETURN_IF_ERROR(writer.write(bytes)); ...          as many calls as suit;
//   tensors are padded on the way RETURN_IF_ERROR(writer.finish());
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "formats/model_config.h"
#include "tensor/tensor.h"

namespace millrace {

class GgufWriter {
 public:
  GgufWriter() = default;
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;
  ~GgufWriter();

  // Each key once (CHECK).
  void add_string(std::string_view key, std::string_view text);
  void add_u32(std::string_view key, uint32_t value);
  void add_i32(std::string_view key, int32_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_strings(std::string_view key, std::span<const std::string> texts);
  void add_i32s(std::string_view key, std::span<const int32_t> values);
  void add_f32s(std::string_view key, std::span<const float> values);
  // A value of another file as it is.
  void add_value(std::string_view key, const GgufValue& value);
  bool has(std::string_view key) const;

  // dtype has a number in the format (CHECK).
  void add_tensor(std::string_view name, DType dtype, const Shape& shape);

  enum class Existing { kKeep, kReplace };  // a file of this name
  Status begin(const std::string& path, Existing existing = Existing::kKeep);
  // CHECK: no more than the tensors take.
  Status write(std::span<const std::byte> bytes);
  // CHECK: all bytes are there.
  Status finish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void add_key(std::string_view key, GgufType type);
  void put_string(std::string& out, std::string_view text);
  Status put(const void* bytes, std::size_t size);
  Status pad_to(uint64_t at);

  std::string keys_, infos_;
  std::vector<std::string> seen_;
  std::vector<std::pair<uint64_t, uint64_t>> extents_;  // of the tensors: begin and end in the data
  std::string path_, part_;
  Existing existing_ = Existing::kKeep;
  std::unique_ptr<std::FILE, Close> file_;
  uint64_t data_start_ = 0;
  uint64_t written_ = 0;     // bytes of the file
  std::size_t current_ = 0;  // the tensor whose bytes come next
};

// The keys of the architecture, and those of general.sampling. kUnsupported: a GGUF file cannot hold it; the error
// names the field.
Status write_gguf_config(const ModelConfig& config, const GenerationDefaults& generation, GgufWriter& writer);
// "llama", "qwen3" ...
std::string_view gguf_architecture(Architecture architecture);

}  // namespace millrace
