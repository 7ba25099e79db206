// SharedKey: the secret that all processes of one deployment hold, read from a file, and the CURVE keys made from it.
//
// The file has 64 hexadecimal digits (32 random bytes) and perhaps one newline. It must belong to this user or to root,
// and no other user may read or write it; a symbolic link to such a file is fine. No message or log line ever contains
// what is in it.
//
// A process that has the key is trusted: the 32 bytes are the secret key of one CURVE key pair (Curve25519), which
// servers and clients use alike. A client knows the server by it, and the server takes this one client key
// (control/zap.h).
//
// Thread safety: values; free functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kSharedKeyBytes = 32;

class SharedKey {
 public:
  // Makes a new key in a new file of mode 0600. kConflict where the path exists: a key is never overwritten.
  static Status generate(const std::string& path);
  // kNotFound, kPermissionDenied (with the mode and owner seen), kInvalidArgument for what is in the file.
  static Result<SharedKey> load(const std::string& path);
  // From the 64 digits.
  static Result<SharedKey> parse(std::string_view hex);

  SharedKey(const SharedKey&) = default;
  SharedKey& operator=(const SharedKey&) = default;
  ~SharedKey();  // wipes the memory

  const std::string& bytes() const { return bytes_; }                // the 32, for other planes' proofs
  const std::string& curve_secret() const { return curve_secret_; }  // Z85, 40 characters
  const std::string& curve_public() const { return curve_public_; }

 private:
  SharedKey() = default;
  std::string bytes_, curve_secret_, curve_public_;
};

}  // namespace millrace
