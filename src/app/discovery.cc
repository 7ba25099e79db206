#include "app/discovery.h"

#include <cstdio>

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

}  // namespace

Result<std::unique_ptr<Leadership>> lead_by_name(const std::string& name, const std::string& control,
                                                 const sigset_t& signals) {
  if (name.empty()) return std::unique_ptr<Leadership>();
  ASSIGN_OR_RETURN(const EtcdName etcd, parse_etcd_name(name));
  return Leadership::acquire(etcd, control, waiting_at("stands by for", name, signals));
}

Result<std::unique_ptr<CoordinatorLocator>> find_by_name(const std::string& join, const sigset_t& signals) {
  if (!is_etcd_name(join)) return std::unique_ptr<CoordinatorLocator>();
  ASSIGN_OR_RETURN(const EtcdName etcd, parse_etcd_name(join));
  return CoordinatorLocator::find(etcd, waiting_at("waits for the coordinator of", join, signals));
}

}  // namespace millrace
