// Endpoints: what is accepted, what is refused and with which message.
#include "control/endpoint.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

struct Good {
  const char* text;
  Transport transport;
  const char* name;
  uint16_t port;
  bool local;
};

TEST(Endpoint, WhatIsTaken) {
  for (const Good& good : {
           Good{"ipc:///tmp/x.sock", Transport::kIpc, "/tmp/x.sock", 0, true},
           {"tcp://127.0.0.1:1", Transport::kTcp, "127.0.0.1", 1, true},
           {"tcp://127.9.8.7:65535", Transport::kTcp, "127.9.8.7", 65535, true},
           {"tcp://localhost:30100", Transport::kTcp, "localhost", 30100, true},
           {"tcp://[::1]:30100", Transport::kTcp, "::1", 30100, true},
           {"tcp://[fd00::a]:30100", Transport::kTcp, "fd00::a", 30100, false},
           {"tcp://[::]:0", Transport::kTcp, "::", 0, false},
           {"tcp://0.0.0.0:0", Transport::kTcp, "0.0.0.0", 0, false},
           {"tcp://*:5557", Transport::kTcp, "*", 5557, false},
           {"tcp://10.0.0.1:5557", Transport::kTcp, "10.0.0.1", 5557, false},
           {"tcp://node-7.rack.example:5557", Transport::kTcp, "node-7.rack.example", 5557, false},
           {"tcp://127.0.0.1.evil.example:1", Transport::kTcp, "127.0.0.1.evil.example", 1, false},
           {"tcp://localhost.evil.example:1", Transport::kTcp, "localhost.evil.example", 1, false},
           {"inproc://stage-0", Transport::kInproc, "stage-0", 0, true},
       }) {
    const auto parsed = parse_endpoint(good.text);
    ASSERT_TRUE(parsed.ok()) << good.text << ": " << parsed.status().to_string();
    EXPECT_EQ(parsed->transport, good.transport) << good.text;
    EXPECT_EQ(parsed->name, good.name);
    EXPECT_EQ(parsed->port, good.port);
    EXPECT_EQ(parsed->local(), good.local) << good.text;
    EXPECT_EQ(parsed->to_string(), good.text);
    EXPECT_EQ(*parse_endpoint(parsed->to_string()), *parsed);
  }
  EXPECT_EQ(parse_endpoint("tcp://[0:0:0:0:0:0:0:1]:5")->to_string(), "tcp://[::1]:5");
  EXPECT_TRUE(parse_endpoint("tcp://[0:0:0:0:0:0:0:1]:5")->local());
  EXPECT_FALSE(parse_endpoint("tcp://[::ffff:10.0.0.1]:5")->local());
}

TEST(Endpoint, WhatIsRefusedAndWithWhichMessage) {
  struct Bad {
    std::string text, reason;
  };
  for (const Bad& bad : {
           Bad{"", "transport"},
           {"5557", "transport"},
           {"udp://127.0.0.1:5", "transport"},
           {"TCP://127.0.0.1:5", "transport"},
           {"pgm://eth0;239.0.0.1:5557", "transport"},
           {"ipc://", "absolute"},
           {"ipc://relative.sock", "absolute"},
           {"ipc://@abstract", "absolute"},
           {"ipc://*", "absolute"},
           {std::string("ipc:///tmp/a\0b", 14), "control character"},
           {"ipc:///tmp/a\nb", "control character"},
           {"tcp://127.0.0.1", "port"},
           {"tcp://127.0.0.1:", "port"},
           {"tcp://127.0.0.1:x", "port"},
           {"tcp://127.0.0.1:-1", "port"},
           {"tcp://127.0.0.1:+1", "port"},
           {"tcp://127.0.0.1:65536", "port"},
           {"tcp://127.0.0.1:000080", "port"},
           {"tcp://:5", "host"},
           {"tcp://127.1:5", "host"},
           {"tcp://127.0.0.256:5", "host"},
           {"tcp://::1:5", "host"},
           {"tcp://[::1:5", "host"},
           {"tcp://[]:5", "IPv6"},
           {"tcp://[127.0.0.1]:5", "IPv6"},
           {"tcp://[fe80::1%eth0]:5", "IPv6"},
           {"tcp://a b:5", "host"},
           {"tcp://-a:5", "host"},
           {"tcp://a..b:5", "host"},
           {"tcp://" + std::string(64, 'a') + ":5", "host"},
           {"tcp://eth0;10.0.0.1:5", "host"},
           {"inproc://", "0 bytes"},
           {"inproc://a b", "letters"},
           {"inproc://" + std::string(kMaxInprocNameBytes + 1, 'a'), "129 bytes"},
           {"inproc://" + std::string(2000, 'a'), "2009 bytes"},
       }) {
    const auto parsed = parse_endpoint(bad.text);
    ASSERT_FALSE(parsed.ok()) << bad.text;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(bad.reason), std::string::npos) << parsed.status().message();
    EXPECT_NE(parsed.status().message().find("wanted"), std::string::npos);
    EXPECT_NE(parsed.status().message().find(quoted_endpoint(bad.text)), std::string::npos);
    EXPECT_LT(parsed.status().message().size(), 500u);
  }
}

// The limit of the system, not one of ours: one byte more and the kernel's address would be cut.
TEST(Endpoint, APathHasTheSystemsLimit) {
  const std::string longest = "/" + std::string(kMaxIpcPathBytes - 1, 'x');
  EXPECT_TRUE(parse_endpoint("ipc://" + longest).ok());
  const auto over = parse_endpoint("ipc://" + longest + "y");
  ASSERT_FALSE(over.ok());
  EXPECT_NE(over.status().message().find("108 bytes; wanted at most 107"), std::string::npos)
      << over.status().message();
}

TEST(Endpoint, WhatTheLibraryIsGiven) {
  EXPECT_EQ(*address_to_connect(*parse_endpoint("tcp://localhost:7")), "tcp://127.0.0.1:7");
  EXPECT_EQ(*address_to_bind(*parse_endpoint("tcp://localhost:0")), "tcp://127.0.0.1:0");
  EXPECT_EQ(*address_to_connect(*parse_endpoint("tcp://node7:7")), "tcp://node7:7");
  EXPECT_EQ(*address_to_bind(*parse_endpoint("tcp://[::]:0")), "tcp://[::]:0");
  for (const char* bound_only : {"tcp://127.0.0.1:0", "tcp://*:5"}) {
    EXPECT_EQ(address_to_connect(*parse_endpoint(bound_only)).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Endpoint, WhereOtherHostsCanCome) {
  for (const char* good : {"tcp://10.0.0.1:30100", "tcp://[fd00::1]:1", "tcp://node7:65534", "tcp://127.0.0.1:30100"}) {
    EXPECT_TRUE(check_reachable(good).ok()) << good;
  }
  const struct {
    const char *text, *reason;
  } bad[] = {{"banana", "its transport is unknown"},
             {"10.0.0.1:30100", "its transport is unknown"},
             {"ipc:///tmp/x.sock", "other hosts cannot come there"},
             {"inproc://x", "other hosts cannot come there"},
             {"tcp://10.0.0.1", "it has no port"},
             {"tcp://10.0.0.1:0", "port 0"},
             {"tcp://10.0.0.1:65535", "the port after it is used too"},
             {"tcp://*:30100", "stands for every address"},
             {"tcp://0.0.0.0:30100", "stands for every address"},
             {"tcp://[::]:30100", "stands for every address"},
             {"tcp://[::ffff:0.0.0.0]:30100", "stands for every address"}};
  for (const auto& [text, reason] : bad) {
    const Status status = check_reachable(text);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find(reason), std::string::npos) << text << ": " << status.message();
    EXPECT_NE(status.message().find("wanted "), std::string::npos) << status.message();
  }
}

TEST(Endpoint, NothingUnprintableInMessages) {
  EXPECT_EQ(quoted_endpoint("tcp://\x1b[31m\n\xff"), "tcp://?[31m??");
  EXPECT_EQ(quoted_endpoint(std::string(1000, 'a')).size(), 163u);
}

}  // namespace
}  // namespace millrace
