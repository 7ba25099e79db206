// The messages of a layer split: the same bytes as the oracle's, back as they were, and what both sides refuse.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "wire/codec.h"
#include "wire/testing/frames.h"

namespace millrace::wire {
namespace {

LayerRows sample_rows() {
  const float values[] = {1.0F, -0.5F, 0.0F, 3.25F};
  LayerRows rows{.seq = 2, .hidden_size = 2, .payload_bytes = sizeof(values), .checksum = 0x0123456789ABCDEF};
  rows.bytes.bytes.assign(reinterpret_cast<const char*>(values), sizeof(values));
  return rows;
}

const Failure kFailure = {StatusCode::kUnavailable, "range 2 is gone"};

LayerHello sample_hello() {
  return {.chain_epoch = 3,
          .stage_from = 1,
          .ranges = 3,
          .layers_end = 19,
          .facts = {.model_hash = 0xFEDCBA9876543210,
                    .layers = 28,
                    .hidden_size = 2,
                    .page_size = 16,
                    .page_count = 1024,
                    .host_page_count = 8,
                    .max_rows = 512,
                    .kv_dtype = "f32",
                    .isa = "avx512",
                    .weight_version = 7},
          .failure = kFailure,
          .weights_checksum = 0x0123456789ABCDEF};
}

LayerStep sample_step() {
  return {.chain_epoch = 3,
          .step_kind = StepKind::kMixed,
          .stage_from = 0,
          .stage_to = 1,
          .step = 70'000,
          .part = 1,
          .weight_version = 7,
          .batch = {{ReqId{9}, 17, 1, {4, 0}}, {ReqId{10}, 40, 1, {1}, 2}},
          .copies = {1, 4, 2},
          .answer_rows = {0},
          .compute_us = {1500},
          .failure = {},
          .rows = sample_rows(),
          .number = 5};
}

LayerStep sample_media_step() {
  LayerStep step = sample_step();
  step.step_kind = StepKind::kPrefill;
  step.copies.clear();
  LayerMedia& media = step.media.emplace();
  for (char byte = 0; byte < 24; ++byte) media.positions.bytes.push_back(byte);
  media.additions = {3, 1, 4, 1};
  media.features = sample_rows().bytes;
  return step;
}

LayerResult sample_result() {
  return {.chain_epoch = 3,
          .stage_from = 2,
          .step = 70'000,
          .part = 1,
          .compute_us = {1500, 900},
          .failure = {},
          .rows = sample_rows()};
}

LayerResult failed_result() {
  LayerResult result = sample_result();
  result.compute_us.clear();
  result.failure = kFailure;
  result.rows = {.hidden_size = 2};
  return result;
}

const std::vector<std::pair<std::string, Message>> kSamples = {
    {"layer_hello", sample_hello()},   {"layer_step", sample_step()},  {"layer_step_media", sample_media_step()},
    {"layer_result", sample_result()}, {"layer_alive", LayerAlive{2}}, {"layer_result_failed", failed_result()}};

TEST(LayerCodec, FramesEqualTheOraclesBytesAndComeBack) {
  testing::expect_golden_frames(kSamples);
  const auto step = std::get<LayerStep>(*decode(testing::golden_frame("layer_step")));
  EXPECT_EQ(step.batch, sample_step().batch);
  EXPECT_EQ(step.rows.bytes, sample_rows().bytes);
}

TEST(LayerCodec, TruncatedAndMutatedFramesAreRefusedOrAreMessages) {
  std::mt19937_64 random(11);
  for (const auto& [name, message] : kSamples) {
    const std::string frame = testing::golden_frame(name);
    testing::expect_refused_or_messages(frame, name, random, 3000);
  }
}

void expect_refused(const Message& message, std::string_view part) {
  const auto frame = encode(message);
  ASSERT_FALSE(frame.ok()) << part;
  EXPECT_NE(frame.status().message().find(part), std::string::npos) << frame.status().message();
}

TEST(LayerCodec, MediaThatDoNotFitTheirRowsAreRefused) {
  const std::vector<std::pair<std::function<void(LayerMedia&)>, std::string>> cases = {
      {[](LayerMedia& m) { m.positions.bytes.pop_back(); }, "positions has 23 bytes; wanted 24 for 2 rows"},
      {[](LayerMedia& m) { m.additions.pop_back(); }, "additions has 3 numbers; wanted two for each"},
      {[](LayerMedia& m) { m.features.bytes.pop_back(); }, "features has 15 bytes; wanted 16 for 2 additions"},
      {[](LayerMedia& m) { m.additions[0] = -1; }, "an addition behind layer -1 to row 1"},
      {[](LayerMedia& m) { m.additions[3] = 2; }, "an addition behind layer 4 to row 2; wanted rows of 0 to 1"},
  };
  for (const auto& [change, part] : cases) {
    LayerStep step = sample_media_step();
    change(*step.media);
    expect_refused(step, part);
  }
}

TEST(LayerCodec, StepsWhoseNumbersDisagreeAreRefused) {
  const std::vector<std::pair<std::function<void(LayerStep&)>, std::string>> cases = {
      {[](LayerStep& s) { s.stage_from = 64; }, "stage_from is 64; wanted a range below 63"},
      {[](LayerStep& s) { s.stage_to = 2; }, "stage_to is 2; wanted 1"},
      {[](LayerStep& s) { s.rows.payload_bytes = 12; }, "payload_bytes is 12 with 16 bytes of rows; wanted 16"},
      {[](LayerStep& s) { s.rows.bytes.bytes.pop_back(); }, "with 15 bytes of rows; wanted 16 for 2 rows of 2"},
      {[](LayerStep& s) { s.rows.hidden_size = -1; }, "hidden_size is -1"},
      {[](LayerStep& s) { s.batch.pop_back(); }, "the sequences have 1 rows; wanted seq, 2"},
      {[](LayerStep& s) { s.batch[0].rows = 0; }, "rows is 0 in a sequence; wanted at least 1"},
      {[](LayerStep& s) { s.batch[0].token_index = -4; }, "token_index is -4"},
      {[](LayerStep& s) { s.batch[1].pages_kept = -1; }, "pages_kept is -1"},
      {[](LayerStep& s) { s.copies.pop_back(); }, "copies has 2 numbers; wanted three for each copy"},
      {[](LayerStep& s) {
         s.answer_rows = {1, 1};
       },
       "answer_rows has 1; wanted ascending rows of 2 to 1"},
      {[](LayerStep& s) { s.answer_rows = {-1}; }, "answer_rows has -1"},
      {[](LayerStep& s) { s.answer_rows = {2}; }, "answer_rows has 2; wanted ascending rows of 0 to 1"},
      {[](LayerStep& s) {
         s.failure = Failure{StatusCode::kOk, ""};
       },
       "failure has the code 0"},
      {[](LayerStep& s) { s.compute_us.assign(kMaxRanges + 1, 1); }, "64 elements; wanted at most 63"},
  };
  for (const auto& [change, part] : cases) {
    LayerStep step = sample_step();
    change(step);
    expect_refused(step, part);
  }
}

TEST(LayerCodec, HellosAndResultsAreCheckedToo) {
  LayerHello hello = sample_hello();
  hello.ranges = 1;
  expect_refused(hello, "ranges is 1; wanted 2 to 63");
  hello = sample_hello();
  hello.layers_end = -1;
  expect_refused(hello, "layers_end is -1");
  expect_refused(LayerAlive{63}, "stage_from is 63; wanted a range below 63");
  LayerResult result = sample_result();
  result.rows.seq = 1;
  expect_refused(result, "wanted 8 for 1 rows of 2");
}

TEST(LayerCodec, TheChecksumIsOfAllThatARangeComputesWith) {
  const LayerStep step = sample_step();
  const std::vector<std::function<void(LayerStep&)>> changes = {
      [](LayerStep& s) { ++s.chain_epoch; },
      [](LayerStep& s) { ++s.stage_from; },
      [](LayerStep& s) { ++s.step; },
      [](LayerStep& s) { ++s.part; },
      [](LayerStep& s) { ++s.weight_version; },
      [](LayerStep& s) { ++s.number; },
      [](LayerStep& s) { ++s.batch[1].request_id.value; },
      [](LayerStep& s) { ++s.batch[1].token_index; },
      [](LayerStep& s) { ++s.batch[1].rows; },
      [](LayerStep& s) { ++s.batch[1].pages_kept; },
      [](LayerStep& s) { ++s.batch[0].pages[1]; },
      [](LayerStep& s) { ++s.copies[0]; },
      [](LayerStep& s) { ++s.answer_rows[0]; },
      [](LayerStep& s) { std::swap(s.copies, s.answer_rows); },
      [](LayerStep& s) { s.batch.pop_back(); },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    LayerStep changed = step;
    changes[i](changed);
    EXPECT_NE(layer_checksum(changed), layer_checksum(step)) << i;
  }
  for (std::size_t bit = 0; bit < 8 * step.rows.bytes.bytes.size(); ++bit) {
    LayerStep flipped = step;
    flipped.rows.bytes.bytes[bit / 8] = static_cast<char>(flipped.rows.bytes.bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(layer_checksum(flipped), layer_checksum(step)) << bit;
  }
  LayerResult result = sample_result();
  const uint64_t sum = layer_checksum(result);
  ++result.part;
  EXPECT_NE(layer_checksum(result), sum);
}

}  // namespace
}  // namespace millrace::wire
