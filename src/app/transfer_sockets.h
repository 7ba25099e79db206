// The sockets of servers that transfer KV pages over TCP and know each other by their clients' requests alone
// (--kv-transfer-listen).
//
// Thread safety: free functions; the links belong to one server.
#pragma once

#include <string>

#include "stages/transfer/transfer_links.h"

namespace millrace {

// Of a server that listens at `listen`, ADDRESS:PORT. Beyond loopback it neither listens nor connects without a key.
Result<transfer::TransferLinks> listening_links(const std::string& listen, const std::string& key_file);
// kInvalidArgument, or the key file's error, with the option's name: whether listening_links() can work.
Status check_transfer_endpoint(const std::string& listen, const std::string& key_file);

}  // namespace millrace
