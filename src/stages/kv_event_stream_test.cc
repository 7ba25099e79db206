// KvEventStream: what a listener gets, as bytes.
#include "stages/kv_event_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zmq.h>

#include "base/log.h"

namespace millrace {
namespace {

// The payload of one message, or nothing where none comes in time.
std::string receive(void* socket) {
  std::string last;
  int more = 1;
  while (more != 0) {
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&frame, socket, 0) < 0) return "";
    last.assign(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
    more = zmq_msg_more(&frame);
    zmq_msg_close(&frame);
  }
  return last;
}

// A router that outlives the scheduler before still has that one's pages.
TEST(KvEventStream, BeginsWithAllBlocksCleared) {
  log_init("test", LogLevel::kError);
  auto context = std::make_shared<ZmqContext>();
  const std::string endpoint = "ipc://" + ::testing::TempDir() + "stream-" + std::to_string(::getpid()) + ".sock";
  auto socket = EventSocket::bind(*context, endpoint, false);
  ASSERT_TRUE(socket.ok()) << socket.status().to_string();
  void* listener = zmq_socket(context->handle(), ZMQ_SUB);
  const int linger = 0, soon_ms = 50, patience_ms = 120'000;
  zmq_setsockopt(listener, ZMQ_LINGER, &linger, sizeof linger);
  zmq_setsockopt(listener, ZMQ_SUBSCRIBE, "", 0);
  ASSERT_EQ(zmq_connect(listener, endpoint.c_str()), 0);
  // A subscription takes a while to arrive, and what is published before has no listener.
  zmq_setsockopt(listener, ZMQ_RCVTIMEO, &soon_ms, sizeof soon_ms);
  for (int i = 0; i < 2000; ++i) {
    (*socket)->publish("probe", "probe");
    if (!receive(listener).empty()) break;
  }
  zmq_setsockopt(listener, ZMQ_RCVTIMEO, &patience_ms, sizeof patience_ms);
  (*socket)->publish("probe", "last probe");
  std::string payload;
  do payload = receive(listener);
  while (payload == "probe");
  ASSERT_EQ(payload, "last probe");

  KvEventStream stream(std::move(socket).value(), 0, context);
  stream.publish({});
  KvEvents stored;
  stored.events.push_back({.kind = KvEventKind::kStored, .hashes = {7}, .weight_version = 1});
  stream.publish(stored);
  stream.publish(stored);
  EXPECT_NE(receive(listener).find("AllBlocksCleared"), std::string::npos);
  for (int i = 0; i < 2; ++i) EXPECT_NE(receive(listener).find("BlockStored"), std::string::npos);
  std::vector<wire::Metric> metrics;
  stream.describe(metrics);
  EXPECT_EQ(metrics.at(0).value, 2);
  zmq_close(listener);
}

}  // namespace
}  // namespace millrace
