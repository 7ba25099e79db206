// What a rank publishes in the store so that the others reach it: one record of gloo.
//
// PyTorch 1.13: the addresses of its listeners, one for each other rank. PyTorch 2: its host's name, the address of its
// one listener, and a number for each rank, by which a connection that comes in names its pair. Thread safety: values
// and free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "collective/socket_address.h"

namespace millrace::collective {

struct RankRecord {
  std::string host;
  SocketAddress listener;
  std::vector<int64_t> pair_ids;  // one for each rank of the group, its own included
};

std::string encode_rank_record(const RankRecord& record);
// kInvalidArgument: it is not a record of a group of `world_size`.
Result<RankRecord> decode_rank_record(std::string_view bytes, int world_size);

std::string encode_address_list(const std::vector<SocketAddress>& addresses);
// The address at which the rank `owner`, whose list this is, expects the rank `peer`.
Result<SocketAddress> decode_address_list(std::string_view bytes, int world_size, int owner, int peer);

// Of two listeners the greater one connects. kInvalidArgument: of different families, or equal.
Result<bool> connects_to(const SocketAddress& self, const SocketAddress& peer);

}  // namespace millrace::collective
