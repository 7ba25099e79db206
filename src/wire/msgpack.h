// The part of MessagePack that Millrace's messages and payload trees use (all but timestamps and single-precision
// output), written bounded: a writer, and a reader that borrows from the frame and never allocates. Format:
// https://github.com/msgpack/msgpack/blob/master/spec.md
//
// The writer emits the shortest form of each value. The reader accepts every form of the spec for the type asked for,
// and refuses a declared length that the rest of the frame cannot hold before memory is allocated for it.
//
// Thread safety: values; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::wire {

class MsgpackWriter {
 public:
  void nil() { put(0xC0); }
  void boolean(bool value) { put(value ? 0xC3 : 0xC2); }
  void integer(int64_t value);
  void unsigned_integer(uint64_t value);
  void number(double value);
  void string(std::string_view text);
  void binary(std::string_view bytes);
  void array(std::size_t count);
  void map(std::size_t count);
  void ext(int8_t type, std::string_view bytes);

  std::string take() { return std::move(out_); }
  std::size_t size() const { return out_.size(); }

 private:
  void put(unsigned byte) { out_.push_back(static_cast<char>(byte)); }
  void big_endian(uint64_t value, int bytes);

  std::string out_;
};

// What the next value is, for readers that take what comes.
enum class MsgpackType : uint8_t {
  kEnd,      // the frame is over
  kInvalid,  // 0xC1, which the format never uses
  kNil,
  kBoolean,
  kInteger,
  kNumber,  // single or double precision
  kString,
  kBinary,
  kArray,
  kMap,
  kExt,
};

struct MsgpackExt {
  int8_t type = 0;
  std::string_view bytes;  // of the frame
};

class MsgpackReader {
 public:
  explicit MsgpackReader(std::span<const char> frame) : data_(frame) {}

  // Looks at the next value and takes nothing.
  MsgpackType peek() const;
  // True, and consumed, when the next value is nil.
  bool skip_nil();
  // True, and consumed, when the next value is this integer below 128 in its shortest form.
  bool skip_small(uint8_t value);
  Result<bool> boolean();
  Result<int64_t> integer();
  Result<uint64_t> unsigned_integer();
  Result<double> number();
  // Views into the frame; at most max_bytes long.
  Result<std::string_view> string(std::size_t max_bytes);
  Result<std::string_view> binary(std::size_t max_bytes);
  Result<MsgpackExt> ext(std::size_t max_bytes);
  // The number of elements (or key/value pairs) that follow; at most max_count, and never more than the bytes left.
  Result<std::size_t> array(std::size_t max_count);
  Result<std::size_t> map(std::size_t max_count);

  bool at_end() const { return position_ == data_.size(); }
  std::size_t position() const { return position_; }

 private:
  Result<uint8_t> head();
  Result<uint64_t> big_endian(int bytes);
  Result<std::string_view> bytes(std::size_t count, std::size_t max_bytes);
  Status unexpected(std::string_view wanted, unsigned byte) const;
  Result<std::size_t> bounded(Result<uint64_t> count, std::size_t max_count, std::size_t bytes_each) const;

  std::span<const char> data_;
  std::size_t position_ = 0;
};

}  // namespace millrace::wire
