// Fetcher without a loop: what it does on the thread of its caller.
#include "relay/shm/fetcher.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "relay/descriptor.h"

namespace millrace::shm {
namespace {

GetRequest get_from_a_new_writer() {
  const std::size_t sizes[] = {8};
  Descriptor descriptor;
  descriptor.backend = "shm";
  descriptor.instance = make_instance_id();
  descriptor.op = RelayOp{1};
  descriptor.generation = 1;
  descriptor.tail = encode_tail({0, 1});
  describe_sizes(sizes, descriptor);
  GetRequest request{.descriptor = encode_descriptor(descriptor), .sizes = {8}};
  request.done = [](const Result<std::vector<SharedBytes>>&) {};
  return request;
}

// What the closure owns may use the relay, on another thread too.
TEST(ShmFetcher, TheClosureOfARefusedGetGoesWithoutTheLock) {
  const RelayOptions options{.pool_bytes = 1 << 20};
  OpTable table(options, nullptr);
  Result<Poller> poller = Poller::make();
  ASSERT_TRUE(poller.ok());
  Fetcher fetcher(
      options, make_instance_id(), table, *poller, [] { return uint64_t{1}; }, [](const InstanceId&) {});
  for (std::size_t i = 0; i < kMaxLinks; ++i) ASSERT_TRUE(fetcher.get(get_from_a_new_writer()).ok()) << i;
  std::future<void> other;
  bool went_on = false;
  GetRequest refused = get_from_a_new_writer();
  {
    const std::shared_ptr<void> owned(nullptr, [&](void*) {
      other = std::async(std::launch::async, [&] { (void)fetcher.get(get_from_a_new_writer()); });
      went_on = other.wait_for(std::chrono::seconds(120)) == std::future_status::ready;
    });
    refused.done = [owned](const Result<std::vector<SharedBytes>>&) {};
  }
  EXPECT_EQ(fetcher.get(std::move(refused)).status().code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(other.valid());
  other.get();
  EXPECT_TRUE(went_on) << "the fetcher's lock was held";
  table.close();
  fetcher.close();
}

}  // namespace
}  // namespace millrace::shm
