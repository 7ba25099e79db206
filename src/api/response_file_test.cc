// Responses that outlive their process, and files that are none.
#include "api/response_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "api/stored_input.h"

namespace millrace::api {
namespace {

constexpr int64_t kNow = 1000;

class ResponseFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / fmt::format("responses-{:x}", std::random_device()());
    std::filesystem::create_directory(folder_);
    path_ = folder_ / "responses.db";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // As the next process has it: the one before has ended.
  ResponseStore& next(std::size_t bytes = kDefaultStoredBytes) {
    store_.reset();
    store_ = std::make_unique<ResponseStore>();
    store_->set_limits(bytes, 60);
    auto file = ResponseFile::open(path_);
    EXPECT_TRUE(file.ok()) << file.status().to_string();
    if (file.ok()) {
      const Status status = store_->keep_in(std::move(*file), kNow);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    return *store_;
  }
  void add(const std::string& id, const std::string& before = "", Background background = Background::kNo,
           const std::string& text = "hello") {
    const std::string output = R"({"id":")" + id +
                               R"(","status":"in_progress","output":[{"type":"message","id":"msg_)" + id +
                               R"(","content":[{"type":"output_text","text":")" + text + R"("}]}]})";
    store_->add(id, output, R"([{"type":"message","id":"in_)" + id + R"(","role":"user","content":"hi"}])",
                before.empty() ? nullptr : store_->find(before, kNow), {"msg_" + id}, kNow, background);
  }
  std::string refusal() const {
    const auto file = ResponseFile::open(path_);
    return file.ok() ? "" : file.status().message();
  }
  void write(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }

  std::filesystem::path folder_;
  std::string path_;
  std::unique_ptr<ResponseStore> store_;
};

TEST_F(ResponseFileTest, TheNextProcessHasThem) {
  next();
  add("a");
  add("b", "a");
  add("gone");
  const std::string body = store_->find("b", kNow)->body;
  const std::size_t bytes = store_->find("b", kNow)->conversation_bytes;
  store_->forget("gone", kNow);
  store_->forget("a", kNow);
  for (int restart = 0; restart < 2; ++restart) {
    next();
    ASSERT_NE(store_->find("b", kNow), nullptr);
    EXPECT_EQ(store_->find("b", kNow)->body, body);
    EXPECT_EQ(store_->find("b", kNow)->conversation_bytes, bytes);
    EXPECT_EQ(store_->find("b", kNow)->turn, 2);
    EXPECT_EQ(store_->find_item("msg_b", kNow), store_->find("b", kNow));
    EXPECT_EQ(input_items(*store_->find("b", kNow)).size(), 3u) << "with what a deleted one has of the conversation";
    EXPECT_EQ(store_->find("a", kNow), nullptr);
    EXPECT_EQ(store_->find("gone", kNow), nullptr);
    EXPECT_EQ(store_->find("b", kNow + 60), nullptr) << "its time goes on";
  }
  add("c", "b");
  store_->forget("b", kNow);
  store_->forget("c", kNow);
  next();
  EXPECT_EQ(store_->size(), 0u);
  EXPECT_EQ(store_->bytes(), 0u) << "the whole conversation is gone";
}

TEST_F(ResponseFileTest, WhatRanInTheBackgroundHasFailed) {
  next();
  add("a", "", Background::kRunning);
  next();
  ASSERT_NE(store_->find("a", kNow), nullptr);
  const auto body = nlohmann::json::parse(store_->find("a", kNow)->body);
  EXPECT_EQ(body["status"], "failed");
  EXPECT_EQ(body["error"]["code"], "server_error");
  EXPECT_EQ(store_->find("a", kNow)->background, Background::kEnded);
  add("a", "", Background::kEnded);
  next();
  EXPECT_EQ(nlohmann::json::parse(store_->find("a", kNow)->body)["status"], "in_progress") << "the newest of an id";
  EXPECT_EQ(store_->size(), 1u);
}

TEST_F(ResponseFileTest, IsBoundedAsTheStoreIs) {
  next(std::size_t{1} << 20);
  for (int i = 0; i < 30; ++i) add(std::to_string(i), "", Background::kNo, std::string(100'000, 'x'));
  next(std::size_t{1} << 20);
  EXPECT_GT(store_->size(), 5u);
  EXPECT_LT(store_->size(), 11u);
  EXPECT_NE(store_->find("29", kNow), nullptr);
  next(400'000);
  EXPECT_EQ(store_->size(), 3u) << "a smaller limit holds for the file's too";
  next();
  EXPECT_EQ(store_->size(), 3u);
  struct stat file {};
  ASSERT_EQ(::stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

// A disk without space, as far as this process sees.
TEST_F(ResponseFileTest, WhatTheDiskDoesNotTakeIsLostAlone) {
  next();
  add("a");
  next();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{256 << 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  add("big", "", Background::kNo, std::string(2 << 20, 'x'));
  add("behind", "big");
  add("b", "a");
  EXPECT_NE(store_->find("big", kNow), nullptr) << "in memory it is there";
  store_.reset();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  next();
  EXPECT_EQ(store_->find("big", kNow), nullptr);
  EXPECT_EQ(store_->find("behind", kNow), nullptr) << "a half of a conversation is none";
  EXPECT_NE(store_->find("a", kNow), nullptr);
  EXPECT_NE(store_->find("b", kNow), nullptr);
}

TEST_F(ResponseFileTest, IsOfOneProcess) {
  next();
  EXPECT_NE(refusal().find("responses.db: it is open in another process; wanted"), std::string::npos) << refusal();
  add("a");
  next();
  EXPECT_NE(store_->find("a", kNow), nullptr);
}

TEST_F(ResponseFileTest, FilesThatAreNone) {
  write(std::string(5000, 'x'));
  EXPECT_NE(refusal().find("it is no SQLite file"), std::string::npos) << refusal();
  std::filesystem::remove(path_);
  const std::string path = std::exchange(path_, folder_ / "none" / "x.db");
  EXPECT_NE(refusal().find("it cannot be opened: No such file or directory"), std::string::npos) << refusal();
  path_ = folder_;
  EXPECT_NE(refusal().find("Is a directory"), std::string::npos) << refusal();
  path_ = path;
  {
    auto other = SqliteDatabase::open(path_, 7, "CREATE TABLE x(y)");
    ASSERT_TRUE(other.ok()) << other.status().to_string();
  }
  EXPECT_NE(refusal().find("another program's SQLite file (application_id 7)"), std::string::npos) << refusal();
}

TEST_F(ResponseFileTest, ADamagedFile) {
  next();
  for (int i = 0; i < 30; ++i) add(std::to_string(i), "", Background::kNo, std::string(20'000, 'x'));
  store_.reset();
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(4096);
  file << std::string(8192, '\xff');
  file.close();
  EXPECT_NE(refusal().find("it is damaged"), std::string::npos) << refusal();
}

TEST_F(ResponseFileTest, RowsThatNoServerWrites) {
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"number = -5", "a response has the number -5; wanted 1 to 4611686018427387904"},
      {"number = 9223372036854775807",
       "a response has the number 9223372036854775807; wanted 1 to 4611686018427387904"},
      {"before = 7", "response 1 goes on from 7; wanted an earlier one, or 0"},
      {"before = -1", "response 1 goes on from -1; wanted an earlier one, or 0"},
      {"background = 9", "response 1 has the background state 9; wanted one from 0 to 2"},
      {"body = '{'", "the body of response 1: malformed JSON at byte 2"},
      {"input = 'x'", "the input of response 1: malformed JSON at byte 1"},
      {"items = '['", "the items of response 1: malformed JSON at byte 2"},
      {"body = printf('%.*c', 300, '[') || printf('%.*c', 300, ']')",
       "the body of response 1: JSON nested deeper than 128 levels"},
      {"body = '[]'", "response 1: body.output is of type null; wanted an array of items"},
      {"body = '{\"output\":{}}'", "response 1: body.output is of type object; wanted an array of items"},
      {"body = '{\"output\":[{\"id\":\"a\"},{\"id\":7}]}'", "response 1: body.output[1].id is no string; wanted one"},
      {"input = '{}'", "response 1: input is of type object; wanted an array of items"},
      {"input = '[7]'", "response 1: input[0] is of type integer; wanted an object"},
  };
  for (const auto& [change, wanted] : changes) {
    std::filesystem::remove(path_);
    next();
    add("a");
    store_.reset();
    {
      auto database = SqliteDatabase::open(path_, 0x4d525250, "");
      ASSERT_TRUE(database.ok()) << database.status().to_string();
      auto update = database->prepare(("UPDATE response SET " + change).c_str());
      ASSERT_TRUE(update.ok() && update->run().ok()) << change;
    }
    auto file = ResponseFile::open(path_);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    const Status status = ResponseStore().keep_in(std::move(*file), kNow);
    EXPECT_NE(status.message().find("responses.db: " + wanted), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace millrace::api
