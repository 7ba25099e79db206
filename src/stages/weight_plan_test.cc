// The requests of trainers: both forms, what they may leave out, and what is refused.
#include "stages/weight_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace {
namespace {

Result<WeightPlan> plan(const std::string& text) { return read_weight_plan(parse_json(text).value()); }
Result<TrainerGroup> group(const std::string& text) { return read_trainer_group(parse_json(text).value()); }

TEST(WeightPlan, BothFormsAreRead) {
  const auto buckets =
      plan(R"({"buckets":[{"names":["a","b"],"dtypes":["torch.bfloat16","float32"],"shapes":[[2,3],[]]},
                                {"names":["c"],"dtypes":["half"],"shapes":[[0]]}],"num_buckets":2,"group_name":"g",
                                "load_format":"flattened_bucket","transport":"nccl"})");
  ASSERT_TRUE(buckets.ok()) << buckets.status().to_string();
  EXPECT_TRUE(buckets->flattened);
  EXPECT_EQ(buckets->group, "g");
  ASSERT_EQ(buckets->buckets.size(), 2u);
  EXPECT_EQ(buckets->buckets[0][0].size_bytes(), 12u);
  EXPECT_EQ(buckets->buckets[0][1].size_bytes(), 4u);
  EXPECT_EQ(buckets->buckets[1][0].size_bytes(), 0u);
  EXPECT_EQ(buckets->tensors().size(), 3u);
  const auto one = plan(R"({"names":["a"],"dtypes":["BF16"],"shapes":[[4]],"load_format":null})");
  ASSERT_TRUE(one.ok()) << one.status().to_string();
  EXPECT_EQ(one->group, "weight_update_group");
  EXPECT_FALSE(one->flattened);
  // What goes to the stages is read to the same plan.
  const auto again = plan(to_json(*buckets, 7));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->base_version, 7u);
  EXPECT_EQ(to_json(*again, 7), to_json(*buckets, 7));
}

// The file is the coordinator's to name: a client's JSON names none.
TEST(WeightPlan, TheFileOfABodyGoesToTheStages) {
  WeightPlan sent{.group = "request body", .flattened = true, .buckets = {{{"a", DType::kBF16, {2}}}}};
  EXPECT_TRUE(read_weight_body(parse_json(to_json(sent, 1)).value())->path.empty());
  sent.body = {.path = "/proc/1/fd/5", .begin = 80, .end = 84, .checksum = 0xfedcba9876543210};
  const std::string text = to_json(sent, 1, 3);
  const auto read = plan(text);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->round, 3);
  EXPECT_TRUE(read->body.path.empty());
  const auto body = read_weight_body(parse_json(text).value());
  ASSERT_TRUE(body.ok()) << body.status().to_string();
  EXPECT_EQ(body->path, "/proc/1/fd/5");
  EXPECT_EQ(body->begin, 80u);
  EXPECT_EQ(body->end, 84u);
  EXPECT_EQ(body->checksum, 0xfedcba9876543210u);
}

TEST(WeightPlan, TheGroupsBackendGoesToTheStages) {
  const std::string base = R"({"master_address":"h","master_port":1,"world_size":2)";
  EXPECT_EQ(group(base + "}")->backend, "gloo");
  const auto nccl = group(base + R"(,"backend":"nccl"})");
  ASSERT_TRUE(nccl.ok()) << nccl.status().to_string();
  EXPECT_EQ(group(to_json(*nccl))->backend, "nccl");
  EXPECT_EQ(group(base + R"(,"backend":"mpi"})").status().message(), "backend is 'mpi'; wanted 'gloo' or 'nccl'");
}

TEST(WeightPlan, WhatContradictsItselfIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "names is missing"},
      {R"({"buckets":[]})", "1 to 4096 buckets"},
      {R"({"buckets":{}})", "buckets"},
      {R"({"buckets":[5]})", "bucket 0: a bucket is a"},
      {R"({"names":["a"],"dtypes":[],"shapes":[[1]]})", "1 names, 0 dtypes and 1 shapes"},
      {R"({"names":[],"dtypes":[],"shapes":[]})", "at least one"},
      {R"({"names":[5],"dtypes":["float32"],"shapes":[[1]]})", "other than strings"},
      {R"({"names":[""],"dtypes":["float32"],"shapes":[[1]]})", "0 bytes"},
      {R"({"names":["a"],"dtypes":["float64"],"shapes":[[1]]})", "dtype is 'float64'"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[1]})", "its shape is no array"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[[-1]]})", "below 0"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[[1.5]]})", "its shape has a"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[[18446744073709551615]]})", "more than"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[[1099511627776,2]]})", "more than"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[[1,1,1,1,1,1,1,1,1]]})", "at most 8"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[[1]],"num_buckets":73})", "num_buckets is 73 and 1"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[[1]],"load_format":"sparse"})", "load_format"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[[1]],"base_version":-1})",
       "base_version is -1; wanted 0 or more"},
      {R"({"names":["a"],"dtypes":["float32"],"shapes":[[1]],"round":-2})", "round is -2; wanted 0 or more"},
  };
  for (const auto& [text, part] : cases) {
    const auto seen = plan(text);
    ASSERT_FALSE(seen.ok()) << text;
    EXPECT_NE(seen.status().message().find(part), std::string::npos) << seen.status().message();
  }
}

TEST(WeightPlan, ALongGroupNameIsRefused) {
  const auto named = [](std::size_t bytes) {
    return R"({"names":["a"],"dtypes":["float32"],"shapes":[[1]],"group_name":")" + std::string(bytes, 'g') + "\"}";
  };
  EXPECT_TRUE(plan(named(256)).ok());
  EXPECT_EQ(plan(named(257)).status().message(), "group_name has 257 bytes; wanted at most 256");
}

TEST(WeightPlan, ABodyThatIsNoRangeIsRefused) {
  const auto body = [](const std::string& text) {
    return read_weight_body(parse_json(R"({"body":)" + text + "}").value());
  };
  EXPECT_TRUE(body(R"({"path":"p","begin":1,"end":1,"checksum":"18446744073709551615"})").ok());
  EXPECT_EQ(body(R"({"path":"p","begin":-1,"end":1,"checksum":"1"})").status().message(),
            "begin is -1; wanted 0 or more");
  EXPECT_FALSE(body(R"({"path":"p","begin":2,"end":1,"checksum":"1"})").ok());
  for (const char* sum : {"", "1x", "-1", "18446744073709551616"}) {
    const auto read = body(fmt::format(R"({{"path":"p","begin":1,"end":2,"checksum":"{}"}})", sum));
    EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument) << sum;
  }
}

TEST(WeightPlan, GroupsAreReadAndChecked) {
  const auto text = group(R"({"master_address":"trainer","master_port":"29600","rank_offset":2,"world_size":4,
                              "group_name":"g","backend":"gloo","pp_rank":0})");
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  EXPECT_EQ(text->port, 29600);
  const auto again = group(to_json(*text));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(to_json(*again), to_json(*text));
  for (const char* wrong :
       {R"({"master_port":1})", R"({"master_address":"a","master_port":0})",
        R"({"master_address":"a","master_port":65536})", R"({"master_address":"a","master_port":"1x"})",
        R"({"master_address":"a","master_port":1,"rank_offset":0})",
        R"({"master_address":"a","master_port":1,"rank_offset":3,"world_size":3})",
        R"({"master_address":"a","master_port":1,"world_size":100000})",
        R"({"master_address":"a","master_port":1,"backend":"mpi"})"}) {
    EXPECT_FALSE(group(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace millrace
