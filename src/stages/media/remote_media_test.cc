// Pictures that another stage encodes, over mailboxes of this process: the same features, in parts; one run for several
// that ask; what becomes of those whose encoder is lost, has another model, or is wanted no more.
#include "stages/media/remote_media.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "control/mailbox.h"
#include "stages/media/encode_service.h"
#include "stages/stage.h"

namespace millrace {
namespace {

constexpr int64_t kWidth = 64;
const wire::EncoderFacts kFacts{7, "avx512"};

ModelConfig small_config() {
  ModelConfig config;
  config.hidden_size = kWidth;
  config.vision.emplace();
  config.vision->deepstack = {0, 1};
  config.vision->merge_size = 2;
  return config;
}

// Value i of a picture is i plus the first byte of its file.
class Ramp final : public MediaModel {
 public:
  Result<MediaFeatures> encode(const wire::PromptMedia& media, FunctionRef<bool()> keep_going) override {
    ++runs;
    while (closed) {
      if (!keep_going()) {
        ++cancelled;
        return Status(StatusCode::kCancelled, "given up");
      }
      std::this_thread::yield();
    }
    if (media.bytes.bytes == "bad") return invalid_argument("it is no picture");
    auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(3 * media.rows * kWidth));
    for (std::size_t i = 0; i < values->size(); ++i) (*values)[i] = static_cast<float>(i) + media.bytes.bytes[0];
    return MediaFeatures{media.rows, 3, kWidth, std::move(values)};
  }
  void set_positions(int32_t, std::span<const wire::PromptMedia>, PromptInput&) const override {}

  static inline std::atomic<int> runs = 0, cancelled = 0;
  static inline std::atomic<bool> closed = false;
};

wire::PromptMedia picture(const std::string& file, int32_t rows) {
  wire::PromptMedia media{.rows = rows, .grid_t = 1, .grid_h = 2, .grid_w = 2 * rows, .field = "messages[0]"};
  media.bytes.bytes = file;
  media.digest.bytes = file + std::string(wire::kMediaDigestBytes - file.size(), '.');
  return media;
}

// An encoder's stage on a thread, and any number of stages that ask it.
class RemoteMediaTest : public ::testing::Test {
 protected:
  void SetUp() override { Ramp::runs = Ramp::cancelled = 0, Ramp::closed = false; }
  void TearDown() override { stop(); }

  void start(const wire::EncoderFacts& facts = kFacts) {
    LocalMailbox mailbox = make_local_mailbox();
    encoder_ = std::move(mailbox.outbox);
    transfer::TransferLinks links{.inbox = std::move(mailbox.inbox)};
    links.peers = askers_;
    links.connect = [this](const std::string& endpoint) -> Result<std::shared_ptr<Outbox>> {
      const std::lock_guard lock(mutex_);
      return replies_.at(endpoint);
    };
    service_ = std::make_unique<EncodeService>(std::make_unique<Ramp>(), std::move(links), facts);
    stopping_ = false;
    thread_ = std::thread([this] {
      while (!stopping_) {
        service_->receive(1);
        service_->step(monotonic_ms());
      }
    });
    encoders_->set({{"encoder", ++incarnation_}});
  }
  void stop() {
    if (!thread_.joinable()) return;
    encoders_->set({{}});
    stopping_ = true;
    thread_.join();
    service_.reset();
  }

  std::unique_ptr<MediaModel> asker(const std::string& name) {
    LocalMailbox mailbox = make_local_mailbox();
    const std::lock_guard lock(mutex_);
    replies_[name] = std::move(mailbox.outbox);
    auto present = askers_->replicas();
    present[replies_.size() - 1] = {name, 1};
    askers_->set(std::move(present));
    transfer::TransferLinks links{.inbox = std::move(mailbox.inbox), .endpoint = name};
    links.peers = encoders_;
    links.connect = [this](const std::string&) -> Result<std::shared_ptr<Outbox>> { return encoder_; };
    return make_remote_media(std::move(links), kFacts, small_config());
  }

  static Result<MediaFeatures> encode(
      MediaModel& model, const wire::PromptMedia& media,
      const std::function<bool()>& keep_going = [] { return true; }) {
    return model.encode(media, keep_going);
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Outbox>> replies_;
  std::shared_ptr<Outbox> encoder_;
  std::shared_ptr<transfer::TransferPeers> encoders_ = std::make_shared<transfer::TransferPeers>(1, true);
  std::shared_ptr<transfer::TransferPeers> askers_ = std::make_shared<transfer::TransferPeers>(4, false);
  uint64_t incarnation_ = 0;
  std::unique_ptr<EncodeService> service_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

TEST_F(RemoteMediaTest, FeaturesAreThoseOfTheModel) {
  start();
  const auto model = asker("a");
  Ramp local;
  // The last one takes several parts.
  for (const int32_t rows : {1, 5, 40'000}) {
    const wire::PromptMedia media = picture("A" + std::to_string(rows), rows);
    const auto wanted = local.encode(media, [] { return true; }), seen = encode(*model, media);
    ASSERT_TRUE(seen.ok()) << seen.status().to_string();
    EXPECT_EQ(seen->rows, rows);
    EXPECT_EQ(seen->sets, 3);
    EXPECT_EQ(*seen->values, *wanted->values);
  }
}

TEST_F(RemoteMediaTest, ErrorsComeBack) {
  start();
  const auto model = asker("a");
  const auto bad = encode(*model, picture("bad", 2));
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(bad.status().message().find("it is no picture"), std::string::npos) << bad.status().message();
  EXPECT_TRUE(encode(*model, picture("good", 2)).ok());
}

TEST_F(RemoteMediaTest, OneRunForAllThatAsk) {
  start();
  Ramp::closed = true;
  std::vector<std::unique_ptr<MediaModel>> models;
  for (const char* name : {"a", "b", "c"}) models.push_back(asker(name));
  std::vector<std::thread> threads;
  std::atomic<int> same = 0;
  for (auto& model : models) {
    threads.emplace_back([&] { same += encode(*model, picture("same", 3)).ok() ? 1 : 0; });
  }
  while (Ramp::runs == 0) std::this_thread::yield();
  Ramp::closed = false;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, 3);
  EXPECT_EQ(Ramp::runs, 1);
}

TEST_F(RemoteMediaTest, WhatIsWantedNoMoreIsEncodedNoFurther) {
  start();
  Ramp::closed = true;
  const auto model = asker("a");
  const auto gone = encode(*model, picture("gone", 3), [] { return Ramp::runs == 0; });
  EXPECT_EQ(gone.status().code(), StatusCode::kCancelled);
  while (Ramp::cancelled == 0) std::this_thread::yield();
  Ramp::closed = false;
  EXPECT_TRUE(encode(*model, picture("next", 3)).ok());
}

TEST_F(RemoteMediaTest, AnEncoderThatIsLostCostsTimeAlone) {
  start();
  Ramp::closed = true;
  const auto model = asker("a");
  Result<MediaFeatures> seen = internal_error("none");
  std::thread asking([&] { seen = encode(*model, picture("late", 3)); });
  while (Ramp::runs == 0) std::this_thread::yield();
  stop();
  Ramp::closed = false;
  start();
  asking.join();
  ASSERT_TRUE(seen.ok()) << seen.status().to_string();
  EXPECT_EQ(Ramp::runs, 2);
}

TEST_F(RemoteMediaTest, AnotherModelIsRefused) {
  start({8, "avx512"});
  const auto model = asker("a");
  const auto seen = encode(*model, picture("any", 3));
  EXPECT_EQ(seen.status().code(), StatusCode::kConflict);
  EXPECT_NE(seen.status().message().find("the model 0x8 with avx512"), std::string::npos) << seen.status().message();
}

}  // namespace
}  // namespace millrace
