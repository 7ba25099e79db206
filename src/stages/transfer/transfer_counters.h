// TransferCounters: what became of transfers at one end, for /metrics. Owner: that end. Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "wire/messages.h"

namespace millrace::transfer {

struct TransferCounters {
  std::map<std::string, uint64_t> ended;  // by reason: "ok", or the name of a status code
  uint64_t parts = 0;
  uint64_t parts_in_messages = 0;  // whose bytes no relay carried
  uint64_t parts_of_layers = 0;    // while the other layers were computed
  uint64_t bytes = 0;
  uint64_t again = 0;    // parts that were sent, or asked for, once more
  uint64_t ignored = 0;  // messages that named no open transfer, or came twice

  void end(const Status& status) { ++ended[std::string(status.ok() ? "ok" : status_code_name(status.code()))]; }
  // `end`: "prefill" or "decode".
  void describe(const std::string& end, std::size_t open, std::vector<wire::Metric>& metrics) const {
    const auto add = [&](const std::string& name, double value, const std::string& more = "") {
      metrics.push_back({fmt::format("{}{{end={}{}}}", name, end, more), value});
    };
    for (const auto& [reason, count] : ended) {
      add("kv_transfers_total", static_cast<double>(count), fmt::format(",reason={}", reason));
    }
    add("kv_transfer_parts_total", static_cast<double>(parts));
    add("kv_transfer_parts_in_messages_total", static_cast<double>(parts_in_messages));
    add("kv_transfer_parts_of_layers_total", static_cast<double>(parts_of_layers));
    add("kv_transfer_bytes_total", static_cast<double>(bytes));
    add("kv_transfer_parts_again_total", static_cast<double>(again));
    add("kv_transfer_messages_ignored_total", static_cast<double>(ignored));
    add("kv_transfers_open", static_cast<double>(open));
  }
};

}  // namespace millrace::transfer
