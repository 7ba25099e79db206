// The sockets of servers that transfer KV pages: in a private folder of one host (--prefill), or over TCP between
// servers that know each other by their clients' requests alone (--kv-transfer-listen).
//
// Thread safety: free functions; the links belong to one server.
#pragma once

#include <cstdint>
#include <string>

#include "stages/transfer/transfer_service.h"

namespace millrace {

// The sockets of scheduler `index`, and of prefill replica `index`, in this folder.
Result<transfer::TransferLinks> decode_links(const std::string& run_dir, uint32_t index, int peers);
Result<transfer::TransferLinks> prefill_links(const std::string& run_dir, uint32_t index);

// Of a server that listens at `listen`, ADDRESS:PORT. Beyond loopback it neither listens nor connects without a key.
Result<transfer::TransferLinks> listening_links(const std::string& listen, const std::string& key_file);
// kInvalidArgument, or the key file's error, with the option's name: whether listening_links() can work.
Status check_transfer_endpoint(const std::string& listen, const std::string& key_file);

}  // namespace millrace
