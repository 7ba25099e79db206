#include "relay/session/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>

namespace millrace::session {

Proof prove(std::string_view secret, Prover who, const Transcript& transcript) {
  std::string text = who == Prover::kReader ? "millrace relay 2 reader" : "millrace relay 2 writer";
  // Ends the label, so that no label is the beginning of another.
  text.push_back('\0');
  const auto append = [&text](std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  append(transcript.reader_nonce);
  append(transcript.writer_nonce);
  std::array<std::byte, 16> instances{};
  store_u64(&instances[0], transcript.reader_instance);
  store_u64(&instances[8], transcript.writer_instance);
  append(instances);
  text += transcript.reader_address;  // last, so that its length needs no field
  Proof proof{};
  unsigned int size = 0;
  const unsigned char* made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(proof.data()), &size);
  CHECK(made != nullptr && size == proof.size());
  return proof;
}

bool same_proof(std::span<const std::byte> a, const Proof& b) {
  // A comparison that stops at the first difference would show by its time how many bytes of a guess are right.
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), b.size()) == 0;
}

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    // getrandom(2): without flags it waits only before the pool is initialised, early at boot; over 256 bytes may come
    // in part.
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0) {
      CHECK(errno == EINTR);
      continue;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

uint64_t random_u64() {
  std::array<std::byte, 8> bytes{};
  do {
    fill_random(bytes);
  } while (load_u64(bytes.data()) == 0);
  return load_u64(bytes.data());
}

}  // namespace millrace::session
