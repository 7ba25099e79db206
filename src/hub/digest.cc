#include "hub/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

namespace millrace::hub {
namespace {

constexpr std::size_t kSha256Digits = 64, kSha1Digits = 40;

Status failed() { return internal_error("OpenSSL computes no checksum"); }

}  // namespace

bool is_checksum(std::string_view etag) {
  return (etag.size() == kSha256Digits || etag.size() == kSha1Digits) &&
         std::all_of(etag.begin(), etag.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

void Digest::Deleter::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Result<Digest> Digest::make(std::string_view etag, uint64_t size) {
  CHECK(is_checksum(etag));
  Digest out;
  out.context_.reset(EVP_MD_CTX_new());
  const bool large = etag.size() == kSha256Digits;
  if (out.context_ == nullptr ||
      EVP_DigestInit_ex(out.context_.get(), large ? EVP_sha256() : EVP_sha1(), nullptr) != 1) {
    return failed();
  }
  if (large) return out;
  const std::string head = fmt::format("blob {}", size);
  RETURN_IF_ERROR(out.update(std::as_bytes(std::span(head.c_str(), head.size() + 1))));  // with its NUL
  return out;
}

Status Digest::update(std::span<const std::byte> bytes) {
  return EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1 ? ok_status() : failed();
}

Result<std::string> Digest::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_DigestFinal_ex(context_.get(), digest.data(), &size) != 1) return failed();
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
  return out;
}

}  // namespace millrace::hub
