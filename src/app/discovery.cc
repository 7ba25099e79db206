#include "app/discovery.h"

#include <cstdio>

#include "app/secret_file.h"
#include "app/signals.h"

namespace millrace {
namespace {

KeyWait waiting_at(const char* what, const std::string& name, const sigset_t& signals) {
  return {.cancelled = [signals] { return stop_signal(signals); },
          .waiting =
              [what, name](const std::string& why) {
                std::printf("Millrace %s %s: %s. Ctrl-C ends.\n", what, name.c_str(), why.c_str());
                std::fflush(stdout);
              }};
}

Status check_no_user(const EtcdUserOptions& user, const char* option) {
  if (user.user.empty() && user.file.empty()) return ok_status();
  return invalid_argument("--discovery-user without an etcd:// name; wanted {} etcd://HOST:PORT/NAME too", option);
}

// With the user, where one is given.
Result<EtcdName> etcd_name(const DiscoveryName& given) {
  ASSIGN_OR_RETURN(EtcdName name, parse_etcd_name(given.name));
  std::string user = given.user.user;
  const char* const option = given.user.file.empty() ? "discovery-user" : "discovery-user-file";
  if (!given.user.file.empty()) {
    ASSIGN_OR_RETURN(user, read_secret(given.user.file, option));
  } else if (user.empty()) {
    return name;
  }
  RETURN_IF_ERROR(set_etcd_user(user, name).with_prefix(fmt::format("--{}", option)));
  return name;
}

}  // namespace

Result<std::unique_ptr<Leadership>> lead_by_name(const DiscoveryName& name, const std::string& control,
                                                 const sigset_t& signals) {
  if (name.name.empty()) {
    RETURN_IF_ERROR(check_no_user(name.user, "--discovery"));
    return std::unique_ptr<Leadership>();
  }
  ASSIGN_OR_RETURN(const EtcdName etcd, etcd_name(name));
  return Leadership::acquire(etcd, control, waiting_at("stands by for", name.name, signals));
}

Result<std::unique_ptr<CoordinatorLocator>> find_by_name(const DiscoveryName& join, const sigset_t& signals) {
  if (!is_etcd_name(join.name)) {
    RETURN_IF_ERROR(check_no_user(join.user, "--join"));
    return std::unique_ptr<CoordinatorLocator>();
  }
  ASSIGN_OR_RETURN(const EtcdName etcd, etcd_name(join));
  return CoordinatorLocator::find(etcd, waiting_at("waits for the coordinator of", join.name, signals));
}

}  // namespace millrace
