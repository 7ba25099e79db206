#include "relay/ucx/transports.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "relay/ucx/ucx_relay.h"

namespace millrace::ucx {
namespace {

constexpr std::string_view kPrefix = "ucx:";

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

Status check_list(std::string_view what, std::string_view list) {
  const bool plain = std::all_of(list.begin(), list.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == ',' || c == ':' || c == '.' || c == '-' || c == '^' || c == '\\';
  });
  if (list.empty() || list.size() > kMaxTransportsBytes || !plain) {
    return invalid_argument("UCX's {} are '{}'; wanted a list of names of at most {} bytes", what,
                            list.substr(0, kMaxTransportsBytes), kMaxTransportsBytes);
  }
  return ok_status();
}

// Whether UCX may use one of `names`, which stand for themselves, or the list excludes others only, or is "all".
bool allows(std::string_view tls, std::initializer_list<std::string_view> names) {
  const bool negative = tls.front() == '^';
  if (negative) tls.remove_prefix(1);
  bool named = false;
  for (const std::string_view word : split(tls)) {
    if (word == "all") return !negative;
    named = named || std::find(names.begin(), names.end(), word) != names.end();
  }
  return named != negative;
}

}  // namespace

Result<Transports> choose_transports(const std::string& listen, const char* env_tls, const char* env_devices) {
  Transports chosen;
  chosen.tls = env_tls != nullptr && *env_tls != 0 ? env_tls : kUcxTransports;
  chosen.devices = env_devices != nullptr && *env_devices != 0 ? env_devices : kUcxDevices;
  if (listen.starts_with(kPrefix)) {
    const std::string_view wanted = std::string_view(listen).substr(kPrefix.size());
    const std::size_t at = wanted.find('@');
    chosen.tls = wanted.substr(0, at);
    if (at != std::string_view::npos) chosen.devices = wanted.substr(at + 1);
  }
  RETURN_IF_ERROR(check_list("transports", chosen.tls));
  RETURN_IF_ERROR(check_list("devices", chosen.devices));
  chosen.memory = allows(chosen.tls, {"posix", "sysv", "sm", "shm", "mm", "xpmem"});
  const std::vector<std::string_view> words = split(chosen.tls);
  const bool inside =
      chosen.tls.front() != '^' && std::all_of(words.begin(), words.end(), [](std::string_view word) {
        constexpr std::string_view kInside[] = {"posix", "sysv", "sm", "shm", "mm", "xpmem", "cma", "knem", "self"};
        return std::find(std::begin(kInside), std::end(kInside), word) != std::end(kInside);
      });
  chosen.network = !inside && chosen.devices != "lo";
  return chosen;
}

}  // namespace millrace::ucx
