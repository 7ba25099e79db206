#include "wire/msgpack.h"

#include <bit>
#include <limits>

namespace millrace::wire {
namespace {

constexpr std::size_t kLargeField = 64 << 10;
constexpr std::size_t kSpaceBehind = 4 << 10;  // for the fields of a message behind a large one

}  // namespace

void MsgpackWriter::big_endian(uint64_t value, int bytes) {
  for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) put(static_cast<unsigned>(value >> shift) & 0xFF);
}

void MsgpackWriter::integer(int64_t value) {
  // The specification lets a positive value have a signed form; its shortest form is an unsigned one.
  if (value >= 0) return unsigned_integer(static_cast<uint64_t>(value));
  // negative fixint: 0xE0 to 0xFF are -32 to -1 as they stand in 8 bits.
  if (value >= -32) return put(static_cast<unsigned>(value) & 0xFF);
  const int bytes = value >= std::numeric_limits<int8_t>::min()    ? 1
                    : value >= std::numeric_limits<int16_t>::min() ? 2
                    : value >= std::numeric_limits<int32_t>::min() ? 4
                                                                   : 8;
  put(bytes == 1 ? 0xD0 : bytes == 2 ? 0xD1 : bytes == 4 ? 0xD2 : 0xD3);
  big_endian(static_cast<uint64_t>(value), bytes);
}

void MsgpackWriter::unsigned_integer(uint64_t value) {
  if (value < 128) return put(static_cast<unsigned>(value));
  const int bytes = value <= 0xFF ? 1 : value <= 0xFFFF ? 2 : value <= 0xFFFFFFFF ? 4 : 8;
  put(bytes == 1 ? 0xCC : bytes == 2 ? 0xCD : bytes == 4 ? 0xCE : 0xCF);
  big_endian(value, bytes);
}

void MsgpackWriter::number(double value) {
  // Always double precision: single precision would change the value that the peer reads.
  put(0xCB);
  big_endian(std::bit_cast<uint64_t>(value), 8);
}

void MsgpackWriter::string(std::string_view text) {
  CHECK(text.size() <= UINT32_MAX);
  // fixstr, str 8, str 16, str 32. The codec's limits keep every size below 2^32.
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
  CHECK(data.size() <= UINT32_MAX);
  // bin 8, bin 16, bin 32: there is no short form as strings have.
  const int bytes = data.size() <= 0xFF ? 1 : data.size() <= 0xFFFF ? 2 : 4;
  put(bytes == 1 ? 0xC4 : bytes == 2 ? 0xC5 : 0xC6);
  big_endian(data.size(), bytes);
  // Else a few bytes behind a large field would have it copied once more.
  if (data.size() >= kLargeField) out_.reserve(out_.size() + data.size() + kSpaceBehind);
  out_.append(data);
}

void MsgpackWriter::array(std::size_t count) {
  CHECK(count <= UINT32_MAX);
  // fixarray, array 16, array 32; an 8-bit form does not exist.
  if (count < 16) return put(0x90u | static_cast<unsigned>(count));
  put(count <= 0xFFFF ? 0xDC : 0xDD);
  big_endian(count, count <= 0xFFFF ? 2 : 4);
}

void MsgpackWriter::map(std::size_t count) {
  CHECK(count <= UINT32_MAX);
  if (count < 16) return put(0x80u | static_cast<unsigned>(count));
  put(count <= 0xFFFF ? 0xDE : 0xDF);
  big_endian(count, count <= 0xFFFF ? 2 : 4);
}

void MsgpackWriter::ext(int8_t type, std::string_view bytes) {
  const std::size_t size = bytes.size();
  CHECK(size <= UINT32_MAX);
  // fixext has the length in the head byte, by its exponent; then ext 8, ext 16, ext 32.
  if (size == 1 || size == 2 || size == 4 || size == 8 || size == 16) {
    put(0xD4u + static_cast<unsigned>(std::countr_zero(size)));
  } else {
    const int length = size <= 0xFF ? 1 : size <= 0xFFFF ? 2 : 4;
    put(length == 1 ? 0xC7 : length == 2 ? 0xC8 : 0xC9);
    big_endian(size, length);
  }
  put(static_cast<uint8_t>(type));
  out_.append(bytes);
}

MsgpackType MsgpackReader::peek() const {
  if (at_end()) return MsgpackType::kEnd;
  // By ranges of the head byte: the fix forms first, then one table for 0xC0 to 0xDF.
  const auto byte = static_cast<uint8_t>(data_[position_]);
  if (byte < 0x80 || byte >= 0xE0) return MsgpackType::kInteger;
  if (byte < 0x90) return MsgpackType::kMap;
  if (byte < 0xA0) return MsgpackType::kArray;
  if (byte < 0xC0) return MsgpackType::kString;
  static constexpr MsgpackType kFromC0[] = {
      MsgpackType::kNil,     MsgpackType::kInvalid, MsgpackType::kBoolean, MsgpackType::kBoolean,  // C0
      MsgpackType::kBinary,  MsgpackType::kBinary,  MsgpackType::kBinary,  MsgpackType::kExt,      // C4
      MsgpackType::kExt,     MsgpackType::kExt,     MsgpackType::kNumber,  MsgpackType::kNumber,   // C8
      MsgpackType::kInteger, MsgpackType::kInteger, MsgpackType::kInteger, MsgpackType::kInteger,  // CC
      MsgpackType::kInteger, MsgpackType::kInteger, MsgpackType::kInteger, MsgpackType::kInteger,  // D0
      MsgpackType::kExt,     MsgpackType::kExt,     MsgpackType::kExt,     MsgpackType::kExt,      // D4
      MsgpackType::kExt,     MsgpackType::kString,  MsgpackType::kString,  MsgpackType::kString,   // D8
      MsgpackType::kArray,   MsgpackType::kArray,   MsgpackType::kMap,     MsgpackType::kMap,      // DC
  };
  return kFromC0[byte - 0xC0];
}

Status MsgpackReader::unexpected(std::string_view wanted, unsigned byte) const {
  // head() has taken the byte already.
  return invalid_argument("byte {:#04x} at offset {} of the frame; wanted {}", byte, position_ - 1, wanted);
}

Result<uint8_t> MsgpackReader::head() {
  if (at_end()) return invalid_argument("frame ends at byte {}; wanted another value", position_);
  return static_cast<uint8_t>(data_[position_++]);
}

Result<uint64_t> MsgpackReader::big_endian(int bytes) {
  // position_ never passes the end, so the difference does not wrap around.
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

// A positive fixint is its own head byte, so one comparison is enough; `value` is below 128 by contract.
bool MsgpackReader::skip_small(uint8_t value) {
  if (at_end() || static_cast<uint8_t>(data_[position_]) != value) return false;
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
  // The four forms are 1, 2, 4 and 8 bytes long; longer forms than needed are read as well.
  if (byte >= 0xCC && byte <= 0xCF) return big_endian(1 << (byte - 0xCC));
  return unexpected("an unsigned integer", byte);
}

Result<int64_t> MsgpackReader::integer() {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  if (byte >= 0xE0) return static_cast<int64_t>(static_cast<int8_t>(byte));
  if (byte >= 0xD0 && byte <= 0xD3) {
    const int bytes = 1 << (byte - 0xD0);
    ASSIGN_OR_RETURN(const uint64_t raw, big_endian(bytes));
    // Sign extension: the value's top bit is shifted up to bit 63 and back, arithmetically (C++20).
    const int unused = 64 - bytes * 8;
    return static_cast<int64_t>(raw << unused) >> unused;
  }
  // The head byte belongs to an unsigned form, or is an error that names it.
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
  // Never written here, but other writers choose it; every float is a double.
  if (byte == 0xCA) {
    ASSIGN_OR_RETURN(const uint64_t raw, big_endian(4));
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(raw)));
  }
  return unexpected("a number", byte);
}

Result<std::string_view> MsgpackReader::bytes(std::size_t count, std::size_t max_bytes) {
  // First the caller's limit, then the frame: the message names the limit that a sender must keep.
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
  // Not checked for UTF-8: whether it must be text is the business of the field that it is for.
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

Result<MsgpackExt> MsgpackReader::ext(std::size_t max_bytes) {
  ASSIGN_OR_RETURN(const uint8_t byte, head());
  uint64_t count = 0;
  if (byte >= 0xD4 && byte <= 0xD8) {
    count = uint64_t{1} << (byte - 0xD4);
  } else if (byte >= 0xC7 && byte <= 0xC9) {
    ASSIGN_OR_RETURN(count, big_endian(1 << (byte - 0xC7)));
  } else {
    return unexpected("an extension", byte);
  }
  // Behind the length and before the data, as in the writer. Signed: the specification keeps the negative ones for
  // itself.
  ASSIGN_OR_RETURN(const uint8_t type, head());
  ASSIGN_OR_RETURN(const std::string_view data, bytes(count, max_bytes));
  return MsgpackExt{static_cast<int8_t>(type), data};
}

Result<std::size_t> MsgpackReader::bounded(Result<uint64_t> count, std::size_t max_count,
                                           std::size_t bytes_each) const {
  if (!count.ok()) return count.status();
  if (*count > max_count) return invalid_argument("{} elements; wanted at most {}", *count, max_count);
  // An element has at least one byte, a pair of a map two. `count` is within max_count here, so the product is small.
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
