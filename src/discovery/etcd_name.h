// EtcdName: where the address of a pipeline's coordinator is written: a key of an etcd cluster.
//
//   etcd://10.0.0.1:2379,10.0.0.2:2379/omni    the key "millrace/omni/coordinator", of whichever of the two answers
//   etcds://etcd.example:2379/omni             the same over TLS, with the system's certificates
//
// Thread safety: values; pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kMaxEtcdMembers = 8;
inline constexpr std::size_t kMaxEtcdNameBytes = 128;
inline constexpr std::size_t kMaxEtcdUserBytes = 1024;  // with the password

struct EtcdName {
  std::vector<std::string> members;  // "http://10.0.0.1:2379"
  std::string name;                  // "omni": letters, digits, '-', '_', '.', '/'
  std::string text;                  // as it was given, for messages
  std::string user, password;        // of an etcd with authentication; "": none

  std::string coordinator_key() const { return "millrace/" + name + "/coordinator"; }
};

// Whether it is meant to be one: it begins with "etcd://" or "etcds://".
bool is_etcd_name(std::string_view text);

// kInvalidArgument with what is wrong and what is wanted.
Result<EtcdName> parse_etcd_name(const std::string& text);

// `text`: "USER:PASSWORD", of printable characters. The error has no part of it.
Status set_etcd_user(const std::string& text, EtcdName& name);

}  // namespace millrace
