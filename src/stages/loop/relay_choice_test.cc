// Which relay a payload takes: by distance, by copies, and by where its bytes are.
#include "stages/loop/relay_choice.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::loop {
namespace {

class Stub final : public Relay {
 public:
  explicit Stub(RelayCapabilities can) : can_(std::move(can)) {}
  RelayCapabilities capabilities() const override { return can_; }
  std::string address() const override { return "at " + can_.name; }
  Result<PutTicket> put(PutRequest) override { return internal_error("not asked"); }
  Result<RelayOp> get(GetRequest) override { return internal_error("not asked"); }
  void cancel(RelayOp) override {}
  void cleanup(ReqId) override {}
  RelayBooks books() const override { return {}; }
  void close() override {}

 private:
  const RelayCapabilities can_;
};

// As the backends report them; cuda_ipc is one that may come.
Relays relays(const std::vector<std::string>& names) {
  const std::vector<RelayCapabilities> all = {
      {.name = "local", .same_process = true, .by_reference = true, .cuda_memory = true},
      {.name = "shm", .same_process = true, .same_host = true, .mapped_receive = true},
      {.name = "tcp", .same_process = true, .same_host = true, .across_hosts = true},
      {.name = "nccl", .same_process = true, .same_host = true, .across_hosts = true, .cuda_memory = true},
      {.name = "cuda_ipc", .same_host = true, .mapped_receive = true, .host_memory = false, .cuda_memory = true}};
  Relays out;
  for (const RelayCapabilities& can : all) {
    if (std::find(names.begin(), names.end(), can.name) != names.end()) out[can.name] = std::make_shared<Stub>(can);
  }
  return out;
}

wire::Peer peer(const std::string& stage, int pid, const Relays& has) {
  wire::Peer out{.stage = stage, .host = "here"};
  out.pid = pid;
  for (const auto& [name, relay] : has) out.relays.push_back({name, {relay->address()}});
  return out;
}

SharedBytes part(Device device) { return SharedBytes(nullptr, reinterpret_cast<const std::byte*>(0x1000), 16, device); }
const std::vector<SharedBytes> kHostParts = {part(Device::kHost), part(Device::kHost)};
const std::vector<SharedBytes> kCudaParts = {part(Device::kCuda)};
const std::vector<SharedBytes> kMixed = {part(Device::kHost), part(Device::kCuda)};

// Between processes of one host.
Result<ChosenRelay> choose(const Relays& has, const std::string& wanted, const std::vector<SharedBytes>& parts) {
  return choose_relay(peer("a", 1, has), peer("b", 2, has), has, wanted, parts);
}
std::string chosen(const std::vector<std::string>& names, const std::vector<SharedBytes>& parts) {
  const auto relay = choose(relays(names), "auto", parts);
  return relay.ok() ? relay->name : relay.status().to_string();
}

TEST(RelayChoice, ReferencesBeatMappingBeatsCopying) {
  const Relays all = relays({"local", "shm", "tcp", "nccl"});
  EXPECT_EQ(choose_relay(peer("a", 1, all), peer("b", 1, all), all, "auto", kHostParts)->name, "local");
  EXPECT_EQ(choose_relay(peer("a", 1, all), peer("b", 2, all), all, "auto", kHostParts)->name, "shm");
  EXPECT_EQ(choose_relay(peer("a", 1, all), peer("b", 2, all), all, "tcp", kHostParts)->name, "tcp");
  wire::Peer far = peer("b", 2, all);
  far.host = "there";
  EXPECT_EQ(choose_relay(peer("a", 1, all), far, all, "auto", kHostParts)->name, "nccl");
  EXPECT_EQ(choose_relay(peer("a", 1, all), far, all, "shm", kHostParts).status().code(), StatusCode::kUnavailable);
}

TEST(RelayChoice, OnlyWhatCarriesTheMemoryOfThePartsIsTaken) {
  EXPECT_EQ(chosen({"shm", "tcp", "nccl"}, kHostParts), "shm");
  EXPECT_EQ(chosen({"shm", "tcp", "nccl"}, kCudaParts), "nccl");
  EXPECT_EQ(chosen({"shm", "tcp", "nccl"}, kMixed), "nccl");
  EXPECT_EQ(chosen({"shm", "nccl", "cuda_ipc"}, kCudaParts), "cuda_ipc");
  EXPECT_EQ(chosen({"shm", "nccl", "cuda_ipc"}, kHostParts), "shm");
  EXPECT_EQ(chosen({"shm", "nccl", "cuda_ipc"}, kMixed), "nccl");
  const Relays all = relays({"local", "shm"});
  EXPECT_EQ(choose_relay(peer("a", 1, all), peer("b", 1, all), all, "auto", kCudaParts)->name, "local");
}

TEST(RelayChoice, WhereNoneCarriesItTheErrorIsClear) {
  const auto none = choose(relays({"local", "shm", "tcp"}), "auto", kCudaParts);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(none.status().message(),
            "no relay carries tensors in CUDA memory to 'b': shm, tcp would reach it and cannot; wanted a relay with "
            "cuda_memory at both ends");
  const auto named = choose(relays({"shm", "nccl"}), "shm", kMixed);
  ASSERT_FALSE(named.ok());
  EXPECT_EQ(named.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(named.status().message().find("tensors in host and CUDA memory to 'b': shm would"), std::string::npos)
      << named.status().message();
  // None that spans the distance at all: as ever.
  EXPECT_EQ(choose(relays({"local"}), "auto", kCudaParts).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace millrace::loop
