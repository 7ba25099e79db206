#include "app/transfer_sockets.h"

#include <unistd.h>

#include <optional>
#include <utility>

#include "app/held_mailbox.h"
#include "control/endpoint.h"
#include "relay/registry.h"

namespace millrace {
namespace {

Status check_key(const Endpoint& endpoint, bool key) {
  if (key || endpoint.local()) return ok_status();
  return invalid_argument("{} is beyond loopback; wanted --kv-transfer-key-file", endpoint.to_string());
}

Result<std::optional<SharedKey>> load_key(const std::string& path) {
  if (path.empty()) return std::optional<SharedKey>();
  ASSIGN_OR_RETURN(SharedKey key, SharedKey::load(path));
  return std::optional(std::move(key));
}

}  // namespace

Status check_transfer_endpoint(const std::string& listen, const std::string& key_file) {
  const std::string text = "tcp://" + listen;
  RETURN_IF_ERROR(check_reachable(text).with_prefix("--kv-transfer-listen"));
  ASSIGN_OR_RETURN(const Endpoint endpoint, parse_endpoint(text));
  RETURN_IF_ERROR(check_key(endpoint, !key_file.empty()).with_prefix("--kv-transfer-listen"));
  return load_key(key_file).status().with_prefix("--kv-transfer-key-file");
}

Result<transfer::TransferLinks> listening_links(const std::string& listen, const std::string& key_file) {
  RETURN_IF_ERROR(check_transfer_endpoint(listen, key_file));
  ASSIGN_OR_RETURN(const std::optional<SharedKey> key, load_key(key_file));
  auto zmq = std::make_shared<ZmqContext>();
  transfer::TransferLinks links;
  // Servers of one host have shared memory; between hosts the bytes go through the one port that was opened.
  ASSIGN_OR_RETURN(std::shared_ptr<Relay> relay, make_relay("shm", {}));
  links.self = {.stage = "server", .boot = host_id(), .pid = ::getpid(), .relays = {{"shm", {relay->address()}}}};
  links.relays.emplace("shm", std::move(relay));
  ASSIGN_OR_RETURN(auto inbox, bind_inbox(*zmq, "tcp://" + listen, key ? &*key : nullptr));
  links.endpoint = inbox->endpoint();
  links.inbox = std::make_unique<HeldInbox>(zmq, std::move(inbox));
  links.connect = [zmq, key](const std::string& text) -> Result<std::shared_ptr<Outbox>> {
    ASSIGN_OR_RETURN(const Endpoint endpoint, parse_endpoint(text));
    if (endpoint.transport != Transport::kTcp) {
      return invalid_argument("{} is no tcp endpoint", quoted_endpoint(text));
    }
    RETURN_IF_ERROR(check_key(endpoint, key.has_value()));
    ASSIGN_OR_RETURN(auto outbox, connect_outbox(*zmq, text, OutboxOptions{.key = key ? &*key : nullptr}));
    return std::shared_ptr<Outbox>(std::make_shared<HeldOutbox>(zmq, std::move(outbox)));
  };
  return links;
}

}  // namespace millrace
