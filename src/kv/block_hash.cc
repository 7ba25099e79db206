#include "kv/block_hash.h"

#include <openssl/evp.h>
#include <sys/random.h>

#include <bit>
#include <chrono>
#include <memory>

#include "base/status.h"

namespace millrace {

namespace {

struct HashKey {
  uint64_t k0 = 0;
  uint64_t k1 = 0;
};

HashKey random_key() {
  HashKey key;
  if (getrandom(&key, sizeof key, 0) == static_cast<ssize_t>(sizeof key)) return key;
  // A kernel without getrandom: less secret, and right all the same.
  key.k0 = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  key.k1 = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return key;
}

class SipState {
 public:
  SipState(uint64_t k0, uint64_t k1)
      : v0_(k0 ^ 0x736f6d6570736575ull),
        v1_(k1 ^ 0x646f72616e646f6dull),
        v2_(k0 ^ 0x6c7967656e657261ull),
        v3_(k1 ^ 0x7465646279746573ull) {}

  void absorb(uint64_t word) {
    v3_ ^= word;
    round();
    v0_ ^= word;
  }

  uint64_t finish() {
    v2_ ^= 0xff;
    for (int i = 0; i < 3; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void round() {
    v0_ += v1_, v1_ = std::rotl(v1_, 13), v1_ ^= v0_, v0_ = std::rotl(v0_, 32);
    v2_ += v3_, v3_ = std::rotl(v3_, 16), v3_ ^= v2_;
    v0_ += v3_, v3_ = std::rotl(v3_, 21), v3_ ^= v0_;
    v2_ += v1_, v1_ = std::rotl(v1_, 17), v1_ ^= v2_, v2_ = std::rotl(v2_, 32);
  }

  uint64_t v0_, v1_, v2_, v3_;
};

uint64_t word(int32_t low, int32_t high) {
  return static_cast<uint32_t>(low) | static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32;
}

// One SHA-256 after another in one context: to make a context costs more than to hash a page. The interface of
// OpenSSL does not fail for a digest that is built in, short of memory running out.
class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(const void* bytes, std::size_t size) { CHECK(EVP_DigestUpdate(context_.get(), bytes, size) == 1); }
  BlockDigest finish() {
    BlockDigest digest{};
    unsigned size = 0;
    CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1 && size == digest.size());
    CHECK(EVP_DigestInit_ex(context_.get(), nullptr, nullptr) == 1);
    return digest;
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

Sha256& sha256() {
  thread_local Sha256 hasher;
  return hasher;
}

}  // namespace

uint64_t siphash13(std::span<const int32_t> block, uint64_t key0, uint64_t key1) {
  SipState state(key0, key1);
  std::size_t i = 0;
  for (; i + 1 < block.size(); i += 2) state.absorb(word(block[i], block[i + 1]));
  // The last word holds the bytes left over and, in its highest byte, the length in bytes modulo 256.
  const uint64_t length = static_cast<uint64_t>(block.size() * 4) << 56;
  state.absorb(length | (i < block.size() ? word(block[i], 0) : 0));
  return state.finish();
}

uint64_t keyed_block_hash(std::span<const int32_t> block) {
  static const HashKey key = random_key();
  return siphash13(block, key.k0, key.k1);
}

BlockDigest chain_digest(const BlockDigest* parent, std::span<const int32_t> block) {
  static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie in memory");
  Sha256& hasher = sha256();
  if (parent != nullptr) hasher.add(parent->data(), parent->size());
  hasher.add(block.data(), block.size_bytes());
  return hasher.finish();
}

BlockDigest text_digest(std::string_view text) {
  Sha256& hasher = sha256();
  hasher.add(text.data(), text.size());
  return hasher.finish();
}

int64_t short_hash(const BlockDigest& digest) {
  uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value = value << 8 | digest[i];
  return static_cast<int64_t>(value);
}

}  // namespace millrace
