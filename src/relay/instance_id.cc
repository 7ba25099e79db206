#include "relay/instance_id.h"

#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

#include <fstream>

#include "base/status.h"

namespace millrace {

uint64_t boot_hash() {
  static const uint64_t hash = [] {
    // random(4): a UUID that the kernel draws once at boot; containers of one host share it.
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    return std::getline(file, id) && !id.empty() ? XXH3_64bits(id.data(), id.size()) : uint64_t{0};
  }();
  return hash;
}

InstanceId make_instance_id() {
  InstanceId id;
  std::size_t have = 0;
  while (have < id.random.size()) {
    // A signal may interrupt it (getrandom(2)); nothing else fails with these arguments.
    const ssize_t got = getrandom(id.random.data() + have, id.random.size() - have, 0);
    if (got > 0) have += static_cast<std::size_t>(got);
    CHECK(got > 0 || errno == EINTR);  // the kernel has random numbers, always
  }
  id.boot = boot_hash();
  id.pid = static_cast<uint32_t>(getpid());
  return id;
}

std::string to_hex(const InstanceId& id) {
  std::string text;
  for (const uint8_t byte : id.random) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace millrace
