// Shared keys: what makes a file a key, and what keeps others from it.
#include "control/shared_key.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "control/testing/sockets.h"

namespace millrace {
namespace {

using testing_control::Folder;

const std::string kHex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

std::string read(const std::string& path) {
  std::stringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

void write(const std::string& path, const std::string& text, mode_t mode) {
  std::ofstream(path) << text;
  ASSERT_EQ(::chmod(path.c_str(), mode), 0);
}

TEST(SharedKey, AGeneratedOneIsPrivateRandomAndLoads) {
  Folder folder;
  const mode_t before = ::umask(0);  // the mode must not depend on it
  ASSERT_TRUE(SharedKey::generate(folder / "a.key").ok());
  ASSERT_TRUE(SharedKey::generate(folder / "b.key").ok());
  ::umask(before);
  struct stat info;
  ASSERT_EQ(::stat((folder / "a.key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(info.st_size, 65);
  const auto a = SharedKey::load(folder / "a.key"), b = SharedKey::load(folder / "b.key");
  ASSERT_TRUE(a.ok()) << a.status().to_string();
  ASSERT_TRUE(b.ok());
  EXPECT_NE(a->bytes(), b->bytes());
  EXPECT_NE(a->curve_public(), b->curve_public());
  EXPECT_EQ(a->bytes().size(), kSharedKeyBytes);
  EXPECT_EQ(SharedKey::parse(read(folder / "a.key").substr(0, 64))->bytes(), a->bytes());
}

TEST(SharedKey, IsNeverOverwritten) {
  Folder folder;
  ASSERT_TRUE(SharedKey::generate(folder / "a.key").ok());
  const std::string before = read(folder / "a.key");
  EXPECT_EQ(SharedKey::generate(folder / "a.key").code(), StatusCode::kConflict);
  EXPECT_EQ(read(folder / "a.key"), before);
  ASSERT_EQ(::symlink((folder / "elsewhere").c_str(), (folder / "link").c_str()), 0);
  EXPECT_FALSE(SharedKey::generate(folder / "link").ok());
  EXPECT_FALSE(SharedKey::generate(folder / "no/such/folder").ok());
}

// The public half of the secret 00 01 .. 1f, from the tests of X25519 implementations; Z85 is ZeroMQ's RFC 32.
TEST(SharedKey, TheCurveKeysAreX25519OfTheBytes) {
  const auto key = SharedKey::parse(kHex);
  ASSERT_TRUE(key.ok());
  std::string expected;
  for (int i = 0; i < 32; ++i) expected += static_cast<char>(i);
  EXPECT_EQ(key->bytes(), expected);
  const unsigned char open[32] = {0x8f, 0x40, 0xc5, 0xad, 0xb6, 0x8f, 0x25, 0x62, 0x4a, 0xe5, 0xb2,
                                  0x14, 0xea, 0x76, 0x7a, 0x6e, 0xc9, 0x4d, 0x82, 0x9d, 0x3d, 0x7b,
                                  0x5e, 0x1a, 0xd1, 0xba, 0x6f, 0x3e, 0x21, 0x38, 0x28, 0x5f};
  std::string z85;
  const char* digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
  for (int i = 0; i < 32; i += 4) {
    const uint32_t word =
        uint32_t{open[i]} << 24 | uint32_t{open[i + 1]} << 16 | uint32_t{open[i + 2]} << 8 | open[i + 3];
    for (const uint32_t power : {52200625u, 614125u, 7225u, 85u, 1u}) z85 += digits[word / power % 85];
  }
  EXPECT_EQ(key->curve_public(), z85);
  std::string upper = kHex;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(SharedKey::parse(upper)->curve_public(), z85);
}

TEST(SharedKey, OthersMayNotReadIt) {
  Folder folder;
  const std::string path = folder / "a.key";
  for (const mode_t mode : {0640u, 0604u, 0660u, 0644u, 0620u, 0601u, 0777u}) {
    write(path, kHex + "\n", mode);
    const auto key = SharedKey::load(path);
    ASSERT_FALSE(key.ok()) << std::oct << mode;
    EXPECT_EQ(key.status().code(), StatusCode::kPermissionDenied);
    EXPECT_NE(key.status().message().find("wanted 0600"), std::string::npos) << key.status().message();
    EXPECT_EQ(key.status().message().find(kHex.substr(0, 8)), std::string::npos) << "it reveals the key";
  }
  for (const mode_t mode : {0600u, 0400u}) {
    write(path, kHex, mode);
    EXPECT_TRUE(SharedKey::load(path).ok()) << std::oct << mode;
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  }
  ASSERT_EQ(::symlink(path.c_str(), (folder / "link").c_str()), 0);
  EXPECT_TRUE(SharedKey::load(folder / "link").ok());
}

TEST(SharedKey, AGroupMayReadOneOfRoots) {
  if (::geteuid() != 0) GTEST_SKIP() << "it takes root, to be another user for a while";
  constexpr uid_t kOther = 65534;
  Folder folder;
  ASSERT_EQ(::chmod((folder / ".").c_str(), 0755), 0);
  const std::string path = folder / "key";
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder / ".");  // folders above it may be closed to others
  for (const auto& [mode, loads] :
       {std::pair{0440u, true}, {0640u, true}, {0444u, false}, {0460u, false}, {0450u, false}}) {
    write(path, kHex, mode);
    ASSERT_EQ(::chown(path.c_str(), 0, kOther), 0);
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    const gid_t group = ::getegid();
    ASSERT_TRUE(::setegid(kOther) == 0 && ::seteuid(kOther) == 0);
    const auto key = SharedKey::load("key");
    ASSERT_TRUE(::seteuid(0) == 0 && ::setegid(group) == 0);
    EXPECT_EQ(key.ok(), loads) << std::oct << mode << ": " << key.status().to_string();
    ASSERT_EQ(::unlink(path.c_str()), 0);
  }
  std::filesystem::current_path(before);
}

TEST(SharedKey, OnlyAKeyIsAKey) {
  Folder folder;
  for (const std::string& bad :
       {std::string(), std::string("\n"), kHex.substr(1), kHex + "0", kHex + "\n\n", kHex + " ", "0x" + kHex.substr(2),
        std::string(63, 'g') + "0", std::string(64, '0'), std::string(64, 'f'), std::string(1 << 20, 'a')}) {
    write(folder / "a.key", bad, 0600);
    const auto key = SharedKey::load(folder / "a.key");
    ASSERT_FALSE(key.ok()) << bad.substr(0, 80);
    EXPECT_EQ(key.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(key.status().message().find(kHex.substr(0, 8)), std::string::npos) << "it reveals the key";
  }
  EXPECT_EQ(SharedKey::load(folder / "nothing").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(SharedKey::load(folder / "").ok());
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(SharedKey::load(folder / "pipe").status().code(),
            StatusCode::kInvalidArgument);  // and does not wait for ever
}

}  // namespace
}  // namespace millrace
