#include "wire/msgpack.h"

#include <bit>
#include <limits>

namespace millrace::wire {

void MsgpackWriter::big_endian(uint64_t value, int bytes) {
  for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) put(static_cast<unsigned>(value >> shift) & 0xFF);
}

void MsgpackWriter::integer(int64_t value) {
  if (value >= 0) return unsigned_integer(static_cast<uint64_t>(value));
  if (value >= -32) return put(static_cast<unsigned>(value) & 0xFF);
  if (value >= std::numeric_limits<int32_t>::min()) {
    put(0xD2);
    return big_endian(static_cast<uint64_t>(value), 4);
  }
  put(0xD3);
  big_endian(static_cast<uint64_t>(value), 8);
}

void MsgpackWriter::unsigned_integer(uint64_t value) {
  if (value < 128) return put(static_cast<unsigned>(value));
  const int bytes = value <= 0xFF ? 1 : value <= 0xFFFF ? 2 : value <= 0xFFFFFFFF ? 4 : 8;
  put(bytes == 1 ? 0xCC : bytes == 2 ? 0xCD : bytes == 4 ? 0xCE : 0xCF);
  big_endian(value, bytes);
}

void MsgpackWriter::number(double value) {
  put(0xCB);
  big_endian(std::bit_cast<uint64_t>(value), 8);
}

void MsgpackWriter::string(std::string_view text) {
  if (text.size() < 32) {
    put(0xA0u | static_cast<unsigned>(text.size()));
  } else {
    const int bytes = text.size() <= 0xFF ? 1 : text.size() <= 0xFFFF ? 2 : 4;
    put(bytes == 1 ? 0xD9 : bytes == 2 ? 0xDA : 0xDB);
    big_endian(text.size(), bytes);
  }
  out_.append(text);
}

void MsgpackWriter::binary(std::string_view data) {
  const int bytes = data.size() <= 0xFF ? 1 : data.size() <= 0xFFFF ? 2 : 4;
  put(bytes == 1 ? 0xC4 : bytes == 2 ? 0xC5 : 0xC6);
  big_endian(data.size(), bytes);
  out_.append(data);
}

void MsgpackWriter::array(std::size_t count) {
  if (count < 16) return put(0x90u | static_cast<unsigned>(count));
  put(count <= 0xFFFF ? 0xDC : 0xDD);
  big_endian(count, count <= 0xFFFF ? 2 : 4);
}

void MsgpackWriter::map(std::size_t count) {
  if (count < 16) return put(0x80u | static_cast<unsigned>(count));
  put(count <= 0xFFFF ? 0xDE : 0xDF);
  big_endian(count, count <= 0xFFFF ? 2 : 4);
}

Status MsgpackReader::unexpected(std::string_view wanted, unsigned byte) const {
  return invalid_argument("byte {:#04x} at offset {} of the frame; wanted {}", byte, position_ - 1, wanted);
}

Result<uint8_t> MsgpackReader::head() {
  if (at_end()) return invalid_argument("frame ends at byte {}; wanted another value", position_);
  return static_cast<uint8_t>(data_[position_++]);
}

Result<uint64_t> MsgpackReader::big_endian(int bytes) {
  if (data_.size() - position_ < static_cast<std::size_t>(bytes)) {
    return invalid_argument("frame ends {} bytes into a {}-byte number", data_.size() - position_, bytes);
  }
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(data_[position_++]);
  return value;
}

bool MsgpackReader::skip_nil() {
  if (at_end() || static_cast<uint8_t>(data_[position_]) != 0xC0) return false;
  ++position_;
  return true;
}

Result<bool> MsgpackReader::boolean() {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  if (byte != 0xC2 && byte != 0xC3) return unexpected("a boolean", byte);
  return byte == 0xC3;
}

Result<uint64_t> MsgpackReader::unsigned_integer() {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  if (byte < 0x80) return static_cast<uint64_t>(byte);
  if (byte >= 0xCC && byte <= 0xCF) return big_endian(1 << (byte - 0xCC));
  return unexpected("an unsigned integer", byte);
}

Result<int64_t> MsgpackReader::integer() {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  if (byte >= 0xE0) return static_cast<int64_t>(static_cast<int8_t>(byte));
  if (byte >= 0xD0 && byte <= 0xD3) {
    const int bytes = 1 << (byte - 0xD0);
    ASSIGN_OR_RETURN(const uint64_t raw, big_endian(bytes));
    const int unused = 64 - bytes * 8;
    return static_cast<int64_t>(raw << unused) >> unused;
  }
  --position_;
  ASSIGN_OR_RETURN(const uint64_t value, unsigned_integer());
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return invalid_argument("{} does not fit a signed 64-bit integer", value);
  }
  return static_cast<int64_t>(value);
}

Result<double> MsgpackReader::number() {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  if (byte == 0xCB) {
    ASSIGN_OR_RETURN(const uint64_t raw, big_endian(8));
    return std::bit_cast<double>(raw);
  }
  if (byte == 0xCA) {
    ASSIGN_OR_RETURN(const uint64_t raw, big_endian(4));
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(raw)));
  }
  return unexpected("a number", byte);
}

Result<std::string_view> MsgpackReader::bytes(std::size_t count, std::size_t max_bytes) {
  if (count > max_bytes) return invalid_argument("a value of {} bytes; wanted at most {}", count, max_bytes);
  if (count > data_.size() - position_) {
    return invalid_argument("a value of {} bytes where {} are left in the frame", count, data_.size() - position_);
  }
  const std::string_view view(data_.data() + position_, count);
  position_ += count;
  return view;
}

Result<std::string_view> MsgpackReader::string(std::size_t max_bytes) {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  if (byte >= 0xA0 && byte <= 0xBF) return bytes(byte & 0x1Fu, max_bytes);
  if (byte < 0xD9 || byte > 0xDB) return unexpected("a string", byte);
  ASSIGN_OR_RETURN(const uint64_t count, big_endian(1 << (byte - 0xD9)));
  return bytes(count, max_bytes);
}

Result<std::string_view> MsgpackReader::binary(std::size_t max_bytes) {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  if (byte < 0xC4 || byte > 0xC6) return unexpected("a binary value", byte);
  ASSIGN_OR_RETURN(const uint64_t count, big_endian(1 << (byte - 0xC4)));
  return bytes(count, max_bytes);
}

Result<std::size_t> MsgpackReader::bounded(Result<uint64_t> count, std::size_t max_count,
                                           std::size_t bytes_each) const {
  if (!count.ok()) return count.status();
  if (*count > max_count) return invalid_argument("{} elements; wanted at most {}", *count, max_count);
  if (*count * bytes_each > data_.size() - position_) {
    return invalid_argument("{} elements declared where {} bytes are left", *count, data_.size() - position_);
  }
  return static_cast<std::size_t>(*count);
}

Result<std::size_t> MsgpackReader::array(std::size_t max_count) {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  if (byte >= 0x90 && byte <= 0x9F) return bounded(static_cast<uint64_t>(byte & 0x0F), max_count, 1);
  if (byte != 0xDC && byte != 0xDD) return unexpected("an array", byte);
  return bounded(big_endian(byte == 0xDC ? 2 : 4), max_count, 1);
}

Result<std::size_t> MsgpackReader::map(std::size_t max_count) {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  if (byte >= 0x80 && byte <= 0x8F) return bounded(static_cast<uint64_t>(byte & 0x0F), max_count, 2);
  if (byte != 0xDE && byte != 0xDF) return unexpected("a map", byte);
  return bounded(big_endian(byte == 0xDE ? 2 : 4), max_count, 2);
}

}  // namespace millrace::wire
