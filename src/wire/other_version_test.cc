// Frames of other versions: what can be read of them, and that no bytes do harm.
#include "wire/other_version.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>

#include "wire/codec.h"
#include "wire/limits.h"

namespace millrace::wire {
namespace {

namespace fs = std::filesystem;

// The frames that tests/oracles/wire_frames.py wrote, by name, with another version.
std::map<std::string, std::string> frames_of_another_version() {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(MILLRACE_SOURCE_DIR "/tests/golden/wire")) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::string frame((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(frame.at(2), static_cast<char>(kWireVersion)) << entry.path();
    frame[2] = 99;
    out[entry.path().stem().string()] = frame;
  }
  return out;
}

TEST(OtherVersion, NamesTheSender) {
  const auto frames = frames_of_another_version();
  ASSERT_GE(frames.size(), 20u);
  for (const auto& [name, frame] : frames) {
    const auto seen = read_other_version(frame);
    ASSERT_TRUE(seen) << name;
    EXPECT_EQ(seen->version, 99u) << name;
    EXPECT_EQ(seen->registration.has_value(), name == "register") << name;
  }
  EXPECT_EQ(read_other_version(frames.at("chunk_batch_end"))->stage, "image_encoder");
  EXPECT_EQ(read_other_version(frames.at("stage_status"))->stage, "scheduler");
  EXPECT_EQ(read_other_version(frames.at("abort_request"))->stage, "");
}

TEST(OtherVersion, AJoinerIsKnownAsFarAsARefusalNeeds) {
  std::string ours = frames_of_another_version().at("register");
  const auto seen = read_other_version(ours);
  ASSERT_TRUE(seen && seen->registration);
  ours[2] = static_cast<char>(kWireVersion);
  const Message decoded = decode(ours).value();
  const auto& wanted = std::get<Register>(decoded);
  EXPECT_EQ(seen->registration->wire_version, 99u);
  EXPECT_EQ(seen->registration->self.stage, wanted.self.stage);
  EXPECT_EQ(seen->registration->self.replica, wanted.self.replica);
  EXPECT_EQ(seen->registration->self.incarnation, wanted.self.incarnation);
  EXPECT_EQ(seen->registration->reply_to, wanted.reply_to);
  EXPECT_EQ(wanted.wire_version, kWireVersion);
  EXPECT_FALSE(read_other_version(ours));  // of our own version
}

TEST(OtherVersion, HostileBytesDoNoHarm) {
  std::mt19937 dice(7);
  for (const auto& [name, frame] : frames_of_another_version()) {
    for (std::size_t size = 0; size < frame.size(); ++size) read_other_version({frame.data(), size});
    for (int i = 0; i < 2000; ++i) {
      std::string bad = frame;
      for (int change = 0; change < 3; ++change) bad[3 + dice() % (bad.size() - 3)] = static_cast<char>(dice());
      const auto seen = read_other_version(bad);
      if (!seen) continue;
      EXPECT_TRUE(seen->stage.empty() || is_stage_name(seen->stage));
      const std::size_t reply_to_bytes = seen->registration ? seen->registration->reply_to.size() : 0;
      EXPECT_LE(reply_to_bytes, kMaxEndpointBytes);
    }
  }
  // Deep, and with counts that no frame holds.
  EXPECT_TRUE(read_other_version(std::string("\x83\x00\x63\x01\x0e\x02\x81\x05", 8) + std::string(100'000, '\x91')));
  EXPECT_TRUE(read_other_version(std::string("\x83\x00\x63\x01\x0e\x02\x81\x05\xdd\xff\xff\xff\xff", 13)));
  EXPECT_FALSE(read_other_version(std::string("\x81\x01\x63", 3)));
  EXPECT_FALSE(read_other_version({}));
}

}  // namespace
}  // namespace millrace::wire
