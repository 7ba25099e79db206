// The field that requests which are traced have, in the messages that bring a request to a stage: nothing, or the one
// form that is written.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "wire/codec.h"
#include "wire/limits.h"
#include "wire/testing/samples.h"

namespace millrace::wire {
namespace {

std::string sample_frame(const std::string& name) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/wire/" + name + ".msgpack", std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename M>
M sample_message(const std::string& name) {
  const auto message = decode(sample_frame(name));
  EXPECT_TRUE(message.ok()) << message.status().to_string();
  return message.ok() ? std::get<M>(*message) : M();
}

void expect_refused(const Message& message, std::string_view part) {
  const auto frame = encode(message);
  ASSERT_FALSE(frame.ok()) << part;
  EXPECT_NE(frame.status().message().find(part), std::string::npos) << frame.status().message();
}

const std::string kGoodParent = testing::kTraceparent;

TEST(TraceparentCodec, IsWellFormed) {
  for (const std::string& bad :
       {kGoodParent.substr(1), kGoodParent.substr(0, 54), "01" + kGoodParent.substr(2),
        kGoodParent.substr(0, 53) + "00", kGoodParent.substr(0, 53) + "03",
        "00-" + std::string(32, '0') + kGoodParent.substr(35), kGoodParent.substr(0, 3) + "A" + kGoodParent.substr(4),
        std::string("\xff"), std::string("x")}) {
    auto submit = sample_message<Submit>("submit");
    submit.traceparent = bad;
    expect_refused(submit, "traceparent is \"");
    auto batch = sample_message<ChunkBatch>("chunk_batch");
    batch.chunks[0].opening->traceparent = bad;
    expect_refused(batch, "traceparent is \"");
    auto want = sample_message<KvWant>("kv_want");
    want.traceparent = bad;
    expect_refused(want, "traceparent is \"");
    auto media = sample_message<EncodeMedia>("encode_media");
    media.traceparent = bad;
    expect_refused(media, "traceparent is \"");
  }
  auto submit = sample_message<Submit>("submit");
  submit.traceparent = kGoodParent + "-more";
  expect_refused(submit, "60 bytes of text; wanted at most 55");
  // Also where another program wrote the frame.
  std::string frame = sample_frame("submit");
  const std::size_t at = frame.find(kGoodParent);
  ASSERT_NE(at, std::string::npos);
  frame[at + kGoodParent.size() - 1] = '0';
  EXPECT_NE(decode(frame).status().message().find("traceparent is \""), std::string::npos);
}

TEST(TraceparentCodec, MayBeAbsent) {
  EXPECT_EQ(sample_message<Submit>("submit_generate").traceparent, "");
  EXPECT_EQ(sample_message<ChunkBatch>("chunk_batch").chunks[4].opening->traceparent, "");
}

// Version 21 had no such field: its frames are refused by their version, and without the field also under ours.
TEST(TraceparentCodec, FramesOfTheVersionBeforeAreRefused) {
  std::string old = sample_frame("submit_generate");
  const std::string tail("\x08\xa0", 2);
  ASSERT_TRUE(old.ends_with(tail) && old[6] == '\x88');
  old.resize(old.size() - tail.size());
  old[6] = '\x87';
  EXPECT_NE(decode(old).status().message().find("field 8 is missing"), std::string::npos);
  old[2] = '\x15';
  EXPECT_NE(decode(old).status().message().find(fmt::format("wire version 21; wanted {}", kWireVersion)),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::wire
