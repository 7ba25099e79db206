// Against the forms of the specification, written out: https://github.com/msgpack/msgpack/blob/master/spec.md
#include "wire/msgpack.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

namespace millrace::wire {
namespace {

using namespace std::string_literals;

std::string written(const auto& write) {
  MsgpackWriter out;
  write(out);
  return out.take();
}

TEST(Msgpack, IntegersTakeTheirShortestForm) {
  const std::pair<int64_t, std::string> cases[] = {
      {0, "\0"s},
      {127, "\x7f"},
      {128, "\xcc\x80"},
      {255, "\xcc\xff"},
      {256, "\xcd\x01\0"s},
      {65535, "\xcd\xff\xff"},
      {65536, "\xce\0\x01\0\0"s},
      {4294967295, "\xce\xff\xff\xff\xff"},
      {4294967296, "\xcf\0\0\0\x01\0\0\0\0"s},
      {-1, "\xff"},
      {-32, "\xe0"},
      {-33, "\xd0\xdf"},
      {-128, "\xd0\x80"},
      {-129, "\xd1\xff\x7f"},
      {-32768, "\xd1\x80\0"s},
      {-32769, "\xd2\xff\xff\x7f\xff"},
      {-2147483648, "\xd2\x80\0\0\0"s},
      {-2147483649, "\xd3\xff\xff\xff\xff\x7f\xff\xff\xff"},
      {std::numeric_limits<int64_t>::min(), "\xd3\x80\0\0\0\0\0\0\0"s},
  };
  for (const auto& [value, form] : cases) {
    EXPECT_EQ(written([&](auto& out) { out.integer(value); }), form) << value;
    MsgpackReader in(form);
    EXPECT_EQ(in.peek(), MsgpackType::kInteger);
    EXPECT_EQ(*in.integer(), value);
    EXPECT_TRUE(in.at_end());
  }
  // Longer forms are read too.
  EXPECT_EQ(*MsgpackReader("\xd3\0\0\0\0\0\0\0\x05"s).integer(), 5);
  EXPECT_FALSE(MsgpackReader("\xcf\x80\0\0\0\0\0\0\0"s).integer().ok());
}

TEST(Msgpack, ExtensionsOfEveryForm) {
  const std::pair<std::size_t, std::string> heads[] = {
      {0, "\xc7\0\x05"s},
      {1, "\xd4\x05"},
      {2, "\xd5\x05"},
      {3, "\xc7\x03\x05"},
      {4, "\xd6\x05"},
      {8, "\xd7\x05"},
      {16, "\xd8\x05"},
      {17, "\xc7\x11\x05"},
      {255, "\xc7\xff\x05"},
      {256, "\xc8\x01\0\x05"s},
      {65536, "\xc9\0\x01\0\0\x05"s},
  };
  for (const auto& [size, head] : heads) {
    const std::string data(size, 'e');
    const std::string form = head + data;
    EXPECT_EQ(written([&](auto& out) { out.ext(5, data); }), form) << size;
    MsgpackReader in(form);
    EXPECT_EQ(in.peek(), MsgpackType::kExt);
    const auto ext = in.ext(size);
    ASSERT_TRUE(ext.ok()) << ext.status().to_string();
    EXPECT_EQ(ext->type, 5);
    EXPECT_EQ(ext->bytes, data);
    EXPECT_EQ(static_cast<const void*>(ext->bytes.data() + size), form.data() + form.size());  // borrowed
    EXPECT_TRUE(in.at_end());
    if (size > 0) {
      EXPECT_FALSE(MsgpackReader(form).ext(size - 1).ok());
    }
    for (std::size_t cut = 0; cut < std::min(form.size(), std::size_t{40}); ++cut) {
      EXPECT_FALSE(MsgpackReader(std::span(form.data(), cut)).ext(size).ok());
    }
  }
  EXPECT_EQ(written([](auto& out) { out.ext(-1, "abcd"); }),
            "\xd6\xff"
            "abcd");
  EXPECT_EQ(MsgpackReader("\xd6\xff"
                          "abcd"s)
                .ext(4)
                ->type,
            -1);
  EXPECT_FALSE(MsgpackReader("\xc4\x01x"s).ext(4).ok());
  EXPECT_FALSE(MsgpackReader("\xc9\xff\xff\xff\xff\x01"s).ext(~std::size_t{0}).ok());
}

TEST(Msgpack, PeekKnowsEveryByte) {
  const auto kind = [](unsigned byte) {
    if (byte < 0x80 || byte >= 0xE0) return MsgpackType::kInteger;
    if (byte < 0x90) return MsgpackType::kMap;
    if (byte < 0xA0) return MsgpackType::kArray;
    if (byte < 0xC0) return MsgpackType::kString;
    switch (byte) {
      case 0xC0:
        return MsgpackType::kNil;
      case 0xC1:
        return MsgpackType::kInvalid;
      case 0xC2:
      case 0xC3:
        return MsgpackType::kBoolean;
      case 0xC4:
      case 0xC5:
      case 0xC6:
        return MsgpackType::kBinary;
      case 0xC7:
      case 0xC8:
      case 0xC9:
      case 0xD4:
      case 0xD5:
      case 0xD6:
      case 0xD7:
      case 0xD8:
        return MsgpackType::kExt;
      case 0xCA:
      case 0xCB:
        return MsgpackType::kNumber;
      case 0xD9:
      case 0xDA:
      case 0xDB:
        return MsgpackType::kString;
      case 0xDC:
      case 0xDD:
        return MsgpackType::kArray;
      case 0xDE:
      case 0xDF:
        return MsgpackType::kMap;
      default:
        return MsgpackType::kInteger;
    }
  };
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char frame[] = {static_cast<char>(byte)};
    const MsgpackReader in(frame);
    EXPECT_EQ(in.peek(), kind(byte)) << byte;
    EXPECT_EQ(in.position(), 0u);
  }
  EXPECT_EQ(MsgpackReader({}).peek(), MsgpackType::kEnd);
}

TEST(Msgpack, NumbersKeepTheirBits) {
  for (const uint64_t bits : {0x7FF8000000000123ull, 0xFFF8000000000000ull, 0x8000000000000000ull, 1ull}) {
    const std::string form = written([&](auto& out) { out.number(std::bit_cast<double>(bits)); });
    EXPECT_EQ(form.size(), 9u);
    EXPECT_EQ(std::bit_cast<uint64_t>(*MsgpackReader(form).number()), bits);
  }
  EXPECT_EQ(*MsgpackReader("\xca\x3f\xc0\0\0"s).number(), 1.5);
}

}  // namespace
}  // namespace millrace::wire
