// A group whose rank 0 is played by the test with the double of NCCL (nccl/testing/fake_nccl.cc), over a store in
// Python. No GPU is used.
#include "collective/nccl_group.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include "collective/testing/pipes.h"
#include "nccl/testing/setting.h"

namespace millrace::collective {
namespace {

using nccl::testing::Setting;

const nccl::Libraries kFake = {{MILLRACE_FAKE_NCCL}, {MILLRACE_FAKE_NCCL}};

std::string bytes_like(int seed, std::size_t size) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>((i * 131 + static_cast<std::size_t>(seed)) >> 3);
  return out;
}

// Rank 0 of a group of two. Its store is a process.
class Trainer {
 public:
  explicit Trainer(int dialect = 2)
      : store_(std::in_place, std::vector<std::string>{"--store-only", "1", "--dialect", std::to_string(dialect)}),
        port_(static_cast<uint16_t>(store_->answer("port"))),
        client_(TcpStoreClient::connect("127.0.0.1", port_, AllowedHosts::resolve("").value(), soon()).value()) {}
  ~Trainer() { leave(); }

  GroupOptions options(const std::string& name = "weights") const { return {"127.0.0.1", port_, 1, 2, name, ""}; }
  nccl::UniqueId new_id() {
    nccl::UniqueId id;
    EXPECT_TRUE(api_.nccl("ncclGetUniqueId", api_.ncclGetUniqueId(&id)).ok());
    return id;
  }
  void publish(const nccl::UniqueId& id) { publish({id.internal, sizeof(id.internal)}); }
  void publish(std::string_view value) {
    EXPECT_TRUE(client_.set(nccl_id_key(client_.dialect(), "weights"), value, soon()).ok());
  }
  // As PyTorch makes its communicator: at once, or with the first broadcast.
  void make_communicator() {
    const nccl::UniqueId id = new_id();
    publish(id);
    communicator_ = nccl::Communicator::open(api_, 0).value();
    ASSERT_TRUE(communicator_->join(id, 0, 2).ok());
    finish();
  }
  void broadcast(const std::string& bytes) {
    const std::shared_ptr<void> memory = *nccl::make_device_memory(api_, bytes.size());
    auto* data = static_cast<std::byte*>(memory.get());
    std::memcpy(data, bytes.data(), bytes.size());
    ASSERT_TRUE(communicator_->broadcast(data, bytes.size(), 0).ok());
    finish();
  }
  void leave() {
    communicator_.reset();
    store_.reset();
  }

 private:
  void finish() {
    while (true) {
      const Result<bool> over = communicator_->poll();
      ASSERT_TRUE(over.ok()) << over.status().to_string();
      if (*over) return;
      std::this_thread::yield();
    }
  }

  const nccl::Api& api_ = **nccl::load_nccl(kFake);
  std::optional<PythonRank> store_;
  const uint16_t port_;
  TcpStoreClient client_;
  std::unique_ptr<nccl::Communicator> communicator_;
};

std::unique_ptr<ProcessGroup> join(const Trainer& trainer, std::shared_ptr<const CancelSignal> cancel = nullptr) {
  if (!cancel) cancel = std::make_shared<CancelSignal>();
  auto group = join_nccl_group(trainer.options(), cancel, soon().deadline, kFake);
  EXPECT_TRUE(group.ok()) << group.status().to_string();
  return group.ok() ? std::move(*group) : nullptr;
}

Status receive(ProcessGroup& group, uint64_t bytes, std::string& out) {
  out.clear();
  return group.receive_broadcast(0, bytes, {soon().deadline}, [&out](std::span<const std::byte> slice) {
    out.append(reinterpret_cast<const char*>(slice.data()), slice.size());
    return ok_status();
  });
}

TEST(NcclGroup, ReceivesOfATrainerThatMakesItsCommunicatorAtOnceOrLater) {
  for (const bool eager : {true, false}) {
    for (const int dialect : {2, 1}) {
      Trainer trainer(dialect);
      const auto group = join(trainer);
      ASSERT_NE(group, nullptr);
      if (eager) trainer.make_communicator();  // it ends though nothing is received
      const std::size_t sizes[] = {1, kCopyBytes, 48, 2 * kCopyBytes + 5};
      std::thread sender([&] {
        if (!eager) trainer.make_communicator();
        for (const std::size_t size : sizes) trainer.broadcast(bytes_like(static_cast<int>(size), size));
      });
      std::string got;
      for (const std::size_t size : sizes) {
        const Status status = receive(*group, size, got);
        EXPECT_TRUE(status.ok()) << status.to_string();
        EXPECT_EQ(got == bytes_like(static_cast<int>(size), size), true) << size;
        EXPECT_TRUE(receive(*group, 0, got).ok());  // of a tensor without elements, nothing is sent
      }
      sender.join();
    }
  }
}

TEST(NcclGroup, WhatTheCallerRefusesIsReceivedAllTheSame) {
  Trainer trainer;
  const auto group = join(trainer);
  ASSERT_NE(group, nullptr);
  trainer.make_communicator();
  std::thread sender([&] {
    trainer.broadcast(bytes_like(1, 3 * kCopyBytes));
    trainer.broadcast(bytes_like(2, 7));
  });
  const Status refused = group->receive_broadcast(0, 3 * kCopyBytes, {soon().deadline},
                                                  [](auto) { return invalid_argument("not wanted"); });
  EXPECT_EQ(refused.message(), "not wanted");
  std::string got;
  EXPECT_TRUE(receive(*group, 7, got).ok());
  EXPECT_EQ(got, bytes_like(2, 7));
  sender.join();
}

TEST(NcclGroup, ATrainerThatDiesIsNoticed) {
  for (const bool joined : {true, false}) {
    Trainer trainer;
    const auto group = join(trainer);
    ASSERT_NE(group, nullptr);
    if (joined) trainer.make_communicator();
    std::thread end([&] { trainer.leave(); });
    std::string got;
    const Status status = receive(*group, 1000, got);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
    EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.message();
    EXPECT_FALSE(receive(*group, 1000, got).ok());  // it is of no more use
    EXPECT_FALSE(group->await_loss(soon().deadline).ok());
    end.join();
  }
}

TEST(NcclGroup, ADeadlineOrACancelEndsItsWaits) {
  for (const bool joined : {true, false}) {
    Trainer trainer;
    const auto cancel = std::make_shared<CancelSignal>();
    const auto group = join(trainer, cancel);
    const auto other = joined ? nullptr : join(trainer);
    ASSERT_NE(group, nullptr);
    if (joined) trainer.make_communicator();
    std::thread canceller([&] { cancel->cancel(); });
    std::string got;
    EXPECT_EQ(receive(*group, 1000, got).code(), StatusCode::kCancelled);
    canceller.join();
    if (!other) continue;
    const auto now = Clock::now() + std::chrono::milliseconds(20);
    EXPECT_EQ(other->receive_broadcast(0, 9, {now}, [](auto) { return ok_status(); }).code(), StatusCode::kDeadline);
  }
}

TEST(NcclGroup, AnIdThatIsNoneOrElsewhereIsRefused) {
  sockaddr_in elsewhere{.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(0xC0000207)}, .sin_zero = {}};
  for (const auto& [make, part] : std::vector<std::pair<std::function<std::string(nccl::UniqueId)>, std::string>>{
           {[](nccl::UniqueId) { return std::string(127, '\1'); }, "127 bytes; wanted 128"},
           {[](nccl::UniqueId) { return std::string(128, '\x7f'); }, "has no address"},
           {[&](nccl::UniqueId id) {
              std::memcpy(id.internal + 8, &elsewhere, sizeof(elsewhere));
              return std::string(id.internal, sizeof(id.internal));
            },
            "192.0.2.7 is not among --trainer-hosts"}}) {
    Trainer trainer;
    const auto group = join(trainer);
    ASSERT_NE(group, nullptr);
    trainer.publish(make(trainer.new_id()));
    std::string got;
    const Status status = receive(*group, 10, got);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  }
}

TEST(NcclGroup, WhatIsMissingIsNamed) {
  const auto reason = [](const nccl::Libraries& libraries) {
    const auto group =
        join_nccl_group({"127.0.0.1", 1, 1, 2, "g", ""}, std::make_shared<CancelSignal>(), soon().deadline, libraries);
    EXPECT_EQ(group.status().code(), StatusCode::kUnavailable);
    EXPECT_TRUE(group.status().message().starts_with("backend nccl: ")) << group.status().message();
    return group.status().message();
  };
  EXPECT_NE(reason({{"libno-cuda.so"}, {MILLRACE_FAKE_NCCL}}).find("libno-cuda.so"), std::string::npos);
  EXPECT_NE(reason({{MILLRACE_FAKE_NCCL}, {"libno-nccl.so"}}).find("libno-nccl.so"), std::string::npos);
  const Setting none("FAKE_NCCL_DEVICES", "0");  // other lists than the other tests': what was loaded once is kept
  EXPECT_NE(reason({{MILLRACE_FAKE_NCCL}, {MILLRACE_FAKE_NCCL, "1"}}).find("no CUDA device"), std::string::npos);
}

}  // namespace
}  // namespace millrace::collective
