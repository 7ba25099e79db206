// The encoder's queue and cache, over a model whose features are the bytes of the file.
#include "stages/media/media_encoder.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <random>
#include <set>

namespace millrace {
namespace {

// Row r of a picture begins as byte r of its file. It stops at a gate while that is closed.
struct Toy {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = true;
  int begun = 0;
  int cancelled = 0;

  void set_open(bool value) {
    const std::lock_guard lock(mutex);
    open = value;
    changed.notify_all();
  }
  void wait_begun(int count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun >= count; });
  }
};

class ToyModel : public MediaModel {
 public:
  explicit ToyModel(Toy& toy) : toy_(toy) {}
  Result<MediaFeatures> encode(const wire::PromptMedia& media, FunctionRef<bool()> keep_going) override {
    std::unique_lock lock(toy_.mutex);
    ++toy_.begun;
    toy_.changed.notify_all();
    while (!toy_.open) {
      if (!keep_going()) {
        ++toy_.cancelled;
        return Status(StatusCode::kCancelled, "given up");
      }
      toy_.changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    if (media.bytes.bytes == "bad") return invalid_argument("no picture");
    auto values = std::make_shared<std::vector<float>>(media.bytes.bytes.begin(), media.bytes.bytes.end());
    return MediaFeatures{media.rows, 1, 1, std::move(values)};
  }
  void set_positions(int32_t rows, std::span<const wire::PromptMedia>, PromptInput& input) const override {
    input.delta = static_cast<float>(rows);
  }

 private:
  Toy& toy_;
};

wire::PromptMedia picture(const std::string& file, int32_t begin = 0) {
  wire::PromptMedia media{.begin = begin, .rows = static_cast<int32_t>(file.size()), .grid_t = 1, .grid_h = 1};
  media.grid_w = media.rows;
  media.digest.bytes = file + std::string(wire::kMediaDigestBytes - file.size(), '.');
  media.bytes.bytes = file;
  media.field = "messages[0]";
  return media;
}

class MediaEncoderTest : public ::testing::Test {
 protected:
  Toy toy;  // before the encoder, whose thread uses it to the end
  MediaEncoder encoder{std::make_unique<ToyModel>(toy), 64};

  // What came for each request, until so many came.
  std::map<uint64_t, MediaEncoder::Encoded> wait_for(std::size_t count) {
    std::map<uint64_t, MediaEncoder::Encoded> out;
    while (out.size() < count) {
      for (auto& [id, encoded] : encoder.take_finished()) out.emplace(id.value, std::move(encoded));
      std::this_thread::yield();
    }
    return out;
  }
  std::optional<MediaEncoder::Encoded> ask(uint64_t id, std::vector<wire::PromptMedia> media) {
    return encoder.encode(ReqId{id}, media, 100);
  }
};

TEST_F(MediaEncoderTest, FeaturesAndPositionsComeTogether) {
  ASSERT_FALSE(ask(1, {picture("abc", 4), picture("de", 9)}).has_value());
  EXPECT_EQ(encoder.waiting(), 1u);
  const auto came = wait_for(1);
  ASSERT_TRUE(came.at(1).ok());
  const PromptInput& input = **came.at(1);
  ASSERT_EQ(input.spans.size(), 2u);
  EXPECT_EQ(input.spans[0].begin, 4);
  EXPECT_EQ(*input.spans[0].features.row(0, 1), 'b');
  EXPECT_EQ(*input.spans[1].features.row(0, 0), 'd');
  EXPECT_EQ(input.delta, 100);
  EXPECT_EQ(input.span_of(3), nullptr);
  EXPECT_EQ(input.span_of(6), &input.spans[0]);
  EXPECT_EQ(input.span_of(7), nullptr);
  EXPECT_EQ(encoder.waiting(), 0u);
}

TEST_F(MediaEncoderTest, EqualPicturesAreEncodedOnce) {
  toy.set_open(false);
  ASSERT_FALSE(ask(1, {picture("abc"), picture("abc", 10)}).has_value());
  ASSERT_FALSE(ask(2, {picture("abc")}).has_value());
  toy.set_open(true);
  EXPECT_EQ(wait_for(2).size(), 2u);
  const auto kept = ask(3, {picture("abc", 1)});
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ((**kept)->spans[0].begin, 1);
  EXPECT_EQ(encoder.counters().encoded, 1u);
  EXPECT_EQ(encoder.counters().joined, 2u);
  encoder.flush();
  EXPECT_EQ(encoder.cached_bytes(), 0u);
  EXPECT_FALSE(ask(4, {picture("abc")}).has_value());
}

TEST_F(MediaEncoderTest, TheOldestFeaturesGo) {
  for (const char* file : {"aaaaaaaa", "bbbbbbbb", "cccccccc"}) {  // 32 bytes each, of 64
    ASSERT_FALSE(ask(1, {picture(file)}).has_value());
    wait_for(1);
  }
  EXPECT_EQ(encoder.cached_bytes(), 64u);
  EXPECT_TRUE(ask(2, {picture("bbbbbbbb")}).has_value());
  EXPECT_FALSE(ask(3, {picture("aaaaaaaa")}).has_value());
}

TEST_F(MediaEncoderTest, ABadPictureFailsThoseWhoHaveIt) {
  toy.set_open(false);
  ASSERT_FALSE(ask(1, {picture("good"), picture("bad", 10)}).has_value());
  ASSERT_FALSE(ask(2, {picture("good")}).has_value());
  toy.set_open(true);
  const auto came = wait_for(2);
  EXPECT_EQ(came.at(1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(came.at(1).status().message().find("messages[0]"), std::string::npos);
  EXPECT_TRUE(came.at(2).ok());
  EXPECT_EQ(encoder.counters().failed, 1u);
}

TEST_F(MediaEncoderTest, EachRequestNamesABadPictureAsItHasIt) {
  toy.set_open(false);
  ASSERT_FALSE(ask(1, {picture("bad")}).has_value());
  wire::PromptMedia second = picture("bad");
  second.field = "messages[7].content[2]";
  ASSERT_FALSE(ask(2, {picture("good", 10), second}).has_value());
  toy.set_open(true);
  const auto came = wait_for(2);
  EXPECT_EQ(came.at(1).status().message(), "messages[0]: no picture");
  EXPECT_EQ(came.at(2).status().message(), "messages[7].content[2]: no picture");
}

// Requests that come, wait, share pictures and leave at random: what is left is what still waits.
TEST_F(MediaEncoderTest, TenThousandThatLeaveLeaveNothing) {
  std::mt19937_64 draw(9);
  std::set<uint64_t> waiting;
  std::size_t ended = 0;
  const auto take = [&] {
    for (const auto& [id, encoded] : encoder.take_finished()) ended += waiting.erase(id.value);
  };
  for (uint64_t id = 1; id <= 10'000; ++id) {
    const auto file = [&] { return "p" + std::to_string(draw() % 40); };
    const auto known = ask(id, {picture(file()), picture(file(), 10)});
    if (known) {
      EXPECT_TRUE(known->ok() || known->status().code() == StatusCode::kResourceExhausted);
    } else {
      waiting.insert(id);
    }
    if (draw() % 16 == 0) encoder.flush();
    if (draw() % 64 == 0) toy.set_open(draw() % 2 == 0);
    if (draw() % 8 == 0) take();
    if (waiting.empty() || draw() % 8 == 0) continue;
    const uint64_t leaves = *std::next(waiting.begin(), static_cast<std::ptrdiff_t>(draw() % waiting.size()));
    encoder.drop(ReqId{leaves});
    waiting.erase(leaves);
    EXPECT_EQ(encoder.waiting(), waiting.size());
  }
  toy.set_open(true);
  while (!waiting.empty()) take();
  EXPECT_EQ(encoder.waiting(), 0u);
  EXPECT_GT(ended, 100u);
}

TEST_F(MediaEncoderTest, WhatIsWantedNoMoreIsGivenUp) {
  toy.set_open(false);
  ASSERT_FALSE(ask(1, {picture("abc")}).has_value());
  toy.wait_begun(1);
  ASSERT_FALSE(ask(2, {picture("never")}).has_value());
  encoder.drop(ReqId{1});
  encoder.drop(ReqId{2});
  encoder.drop(ReqId{7});
  EXPECT_EQ(encoder.waiting(), 0u);
  // One that comes just then is encoded all the same.
  ASSERT_FALSE(ask(3, {picture("abc")}).has_value());
  toy.set_open(true);
  const auto came = wait_for(1);
  EXPECT_TRUE(came.at(3).ok());
  EXPECT_EQ(encoder.counters().encoded, 1u) << "the second one never began";
}

TEST_F(MediaEncoderTest, ItsQueueHasALimit) {
  toy.set_open(false);
  for (uint64_t i = 0; i < kMaxEncoding; ++i) {
    ASSERT_FALSE(ask(i, {picture("p" + std::to_string(i))}).has_value());
  }
  const auto refused = ask(9999, {picture("one more")});
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status().code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(ask(10000, {picture("p0")}).has_value()) << "one that is on its way takes no place";
  toy.set_open(true);
  EXPECT_EQ(wait_for(kMaxEncoding + 1).size(), kMaxEncoding + 1);
}

TEST_F(MediaEncoderTest, EndsWhileItEncodes) {
  toy.set_open(false);
  ASSERT_FALSE(ask(1, {picture("abc")}).has_value());
  toy.wait_begun(1);
}

TEST(CheckPromptMediaTest, NamesWhatIsWrong) {
  const auto check = [](std::vector<wire::PromptMedia> media) { return check_prompt_media(media, 20).message(); };
  EXPECT_EQ(check({picture("abc", 0), picture("de", 3)}), "");
  EXPECT_NE(check({picture("abc", 0), picture("de", 2)}).find("rows [2, 4)"), std::string::npos);
  EXPECT_NE(check({picture("abc", 18)}).find("inside [0, 20)"), std::string::npos);
  EXPECT_NE(check({picture("abc", -1)}).find("rows [-1, 2)"), std::string::npos);
  wire::PromptMedia media = picture("abc");
  media.digest.bytes.pop_back();
  EXPECT_NE(check({media}).find("31 bytes"), std::string::npos);
  media = picture("abc");
  media.grid_h = 0;
  EXPECT_NE(check({media}).find("grid"), std::string::npos);
}

}  // namespace
}  // namespace millrace
