// InstanceId: which instance of a relay something belongs to, so that messages of a dead instance, of another host or
// of another start of the same program are recognized. Random, so no two are ever equal.
//
// Thread safety: values; free functions without state.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace millrace {

struct InstanceId {
  std::array<uint8_t, 16> random{};  // unique in the world
  uint64_t boot = 0;  // a hash of the kernel's boot id: equal for all processes of one host since it was started
  uint32_t pid = 0;   // for messages only: another process namespace counts by itself
  friend bool operator==(const InstanceId&, const InstanceId&) = default;
};

// A fresh one, of this process.
InstanceId make_instance_id();
// Of this host; 0 where the kernel does not provide it.
uint64_t boot_hash();
// The random part as 32 hexadecimal digits: safe in file names and addresses.
std::string to_hex(const InstanceId& id);

}  // namespace millrace
