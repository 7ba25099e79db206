// TransfersTest: the fixture of tests with a TransferNet. For tests only.
#pragma once

#include <string>
#include <vector>

#include "base/log.h"
#include "stages/transfer/testing/transfer_net.h"

namespace millrace::testing {

class TransfersTest : public ::testing::Test {
 protected:
  void SetUp() override { log_init("test", LogLevel::kOff); }

  static double metric(const TransferNet& net, const std::string& name) {
    std::vector<wire::Metric> metrics;
    net.exporter.describe(metrics);
    net.importer.describe(metrics);
    for (const wire::Metric& metric : metrics) {
      if (metric.name == name) return metric.value;
    }
    return 0;
  }
  static double decode_ended(const TransferNet& net, const std::string& reason) {
    return metric(net, "kv_transfers_total{end=decode,reason=" + reason + "}");
  }
};

}  // namespace millrace::testing
