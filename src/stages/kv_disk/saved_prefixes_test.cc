// Prompts that outlive their scheduler: two schedulers one after the other, over fake runners, with one folder. Time is
// the test's; the folder's thread is real, and is waited for.
#include "stages/kv_disk/saved_prefixes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/log.h"
#include "scheduler/testing/harness.h"
#include "scheduler/testing/predict.h"
#include "stages/kv_disk/limits.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using namespace kv_disk;  // NOLINT
using testing::endless;
using testing::Harness;
using testing::kFakeTokenBytes;
using testing::Outcome;
using testing::predict;
using testing::prompt;

constexpr int32_t kPage = 16;

// One start of a server: a scheduler and what it keeps in the folder.
class Instance {
 public:
  explicit Instance(const std::string& path, wire::KvFormat format = format_of(1), int32_t pages = 256)
      : server(facts_of(pages), {.chunked_prefill_tokens = 64}, endless()),
        saved(
            server.scheduler.transfers(), [this] { return this->format; },
            std::make_unique<PageIo>(PageFolder::open(path, 1u << 30).value())),
        format(std::move(format)) {}

  static wire::KvFormat format_of(uint64_t weights) {
    return {.model_hash = 7,
            .weights_checksum = weights,
            .page_size = kPage,
            .page_bytes = kPage * kFakeTokenBytes,
            .kv_dtype = "f32",
            .isa = "ref"};
  }
  static RunnerFacts facts_of(int32_t pages) {
    RunnerFacts facts{1000, 600, kPage, pages};
    facts.weight_version = 1;
    facts.kv_page_bytes = kPage * kFakeTokenBytes;
    return facts;
  }

  // True: the request waits for pages.
  bool send(uint64_t id, const std::vector<int32_t>& tokens, const std::string& extra_key = "") {
    wire::TokenizedRequest request = Harness::request(id, tokens, 8);
    request.extra_key = extra_key;
    sent[id] = request;
    const bool waits = saved.begin(ReqId{id}, tokens, extra_key, now_ms);
    if (waits) {
      held[id] = request;
    } else {
      server.receive(request);
    }
    return waits;
  }
  // Until all requests have ended and nothing waits for the folder.
  void run() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (std::chrono::steady_clock::now() < end) {
      turn();
      if (server.scheduler.busy()) continue;
      if (held.empty() && !saved.waits()) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));  // the folder's thread has its turn
    }
    ADD_FAILURE() << held.size() << " requests wait";
  }
  void turn() {
    server.step();
    for (const PageTransfers::Done& done : server.scheduler.transfers().take_done()) {
      EXPECT_TRUE(saved.on_written(done, now_ms));
    }
    saved.step(now_ms);
    for (const ReqId id : saved.take_ready()) {
      const auto request = held.extract(id.value);
      ASSERT_FALSE(request.empty());
      server.receive(request.mapped());
    }
  }
  void expect_right() {
    server.expect_clean_end();
    for (const auto& [id, request] : sent) {
      EXPECT_EQ(server.outcomes[id].tokens, predict(request, endless(), 1, 600).tokens) << "request " << id;
    }
  }
  int32_t cached(uint64_t id) { return server.outcomes.at(id).usage.cached_tokens; }
  double metric(const std::string& name) const {
    std::vector<wire::Metric> metrics;
    saved.describe(metrics);
    for (const wire::Metric& metric : metrics) {
      if (metric.name == name) return metric.value;
    }
    return -1;
  }

  int64_t now_ms = 1'000'000;
  Harness server;
  SavedPrefixes saved;
  wire::KvFormat format;
  std::map<uint64_t, wire::TokenizedRequest> held, sent;
};

std::vector<int32_t> with_end(std::vector<int32_t> tokens, int32_t end) {
  tokens.push_back(end);
  return tokens;
}

class SavedPrefixesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log_init("test", LogLevel::kOff);
    path_ = ::testing::TempDir() + "saved-" + std::to_string(::getpid());
    fs::remove_all(path_);
  }
  void TearDown() override { fs::remove_all(path_); }
  // Two requests begin with these tokens, and the server ends.
  void use_twice(const std::vector<int32_t>& tokens, const std::string& extra_key = "") {
    Instance instance(path_);
    EXPECT_FALSE(instance.send(1, with_end(tokens, 1), extra_key));
    instance.run();
    EXPECT_FALSE(instance.send(2, with_end(tokens, 2), extra_key));
    instance.run();
    instance.expect_right();
  }
  std::size_t files() const {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) count += entry.is_regular_file();
    return count;
  }
  // That of the page which begins with this token of the prompt.
  fs::path page_file(const std::vector<int32_t>& tokens, std::ptrdiff_t at) const {
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (!entry.is_regular_file()) continue;
      std::vector<int32_t> page(kPage);
      std::ifstream file(entry.path(), std::ios::binary);
      file.seekg(64);
      file.read(reinterpret_cast<char*>(page.data()), kPage * sizeof(int32_t));
      if (std::equal(page.begin(), page.end(), tokens.begin() + at)) return entry.path();
    }
    ADD_FAILURE() << "no file of the page at " << at;
    return {};
  }
  static void damage(const fs::path& page) {
    std::fstream file(page, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(200);
    file.put('x').put('y').put('z');
  }
  std::string path_;
};

TEST_F(SavedPrefixesTest, ARestartFindsWhatTwoRequestsBeganWith) {
  const std::vector<int32_t> system = prompt(400);
  use_twice(system);
  EXPECT_EQ(files(), 25u);
  Instance instance(path_);
  EXPECT_TRUE(instance.send(3, with_end(system, 3)));
  EXPECT_TRUE(instance.send(4, with_end(system, 4))) << "both wait for one restore";
  instance.run();
  instance.expect_right();
  EXPECT_EQ(instance.cached(3), 400);
  EXPECT_EQ(instance.cached(4), 400);
  EXPECT_EQ(instance.metric("kv_disk_restored_tokens_total"), 400);
  EXPECT_EQ(instance.metric("kv_disk_restores_total"), 1);
  EXPECT_EQ(instance.server.scheduler.facts().prefill_rows, 2u);
  EXPECT_FALSE(instance.send(5, with_end(system, 5))) << "it is in the cache";
  instance.run();
  instance.expect_right();
}

TEST_F(SavedPrefixesTest, APromptThatIsUsedOnceIsNotSaved) {
  Instance instance(path_);
  instance.send(1, prompt(400));
  instance.run();
  EXPECT_EQ(files(), 0u);
}

TEST_F(SavedPrefixesTest, OtherTokensWeightsOrKeysFindNothing) {
  const std::vector<int32_t> system = prompt(400);
  use_twice(system, "tenant");
  std::vector<int32_t> other = system;
  other[0] ^= 1;
  Instance same(path_);
  EXPECT_FALSE(same.send(1, with_end(other, 1), "tenant"));
  EXPECT_FALSE(same.send(2, with_end(system, 1), "other"));
  EXPECT_FALSE(same.send(3, with_end(system, 1)));
  EXPECT_TRUE(same.send(4, with_end(system, 1), "tenant"));
  same.run();
  same.expect_right();
  std::vector<wire::KvFormat> formats(5, Instance::format_of(1));
  formats[0].weights_checksum = 2;
  formats[1].model_hash = 8;
  formats[2].kv_dtype = "f16";
  formats[3].isa = "avx2";
  formats[4].page_bytes += 4;
  for (const wire::KvFormat& format : formats) {
    Instance instance(path_, format);
    EXPECT_FALSE(instance.send(1, with_end(system, 1), "tenant"));
    instance.run();
    instance.expect_right();
  }
}

TEST_F(SavedPrefixesTest, ADamagedPageEndsTheRestoreAndTheRestIsComputed) {
  const std::vector<int32_t> system = prompt(400);
  use_twice(system);
  damage(page_file(system, 160));
  Instance instance(path_);
  EXPECT_TRUE(instance.send(3, with_end(system, 3)));
  instance.run();
  instance.expect_right();
  EXPECT_EQ(instance.cached(3), 160);
  EXPECT_EQ(instance.metric("kv_disk_short_restores_total"), 1);
}

TEST_F(SavedPrefixesTest, AnAbortedRequestLeavesNothing) {
  const std::vector<int32_t> system = prompt(400);
  use_twice(system);
  Instance instance(path_);
  EXPECT_TRUE(instance.send(3, with_end(system, 3)));
  instance.saved.cancel(ReqId{3});
  instance.held.clear();
  instance.sent.clear();
  instance.run();
  instance.server.expect_clean_end();
  EXPECT_FALSE(instance.saved.waits());
}

TEST_F(SavedPrefixesTest, ARestoreThatEndedIsNotReadBeforeTheNext) {
  const std::vector<int32_t> slow = prompt(400, 1), aborted = prompt(400, 2), next = prompt(400, 3);
  for (const auto& tokens : {slow, aborted, next}) use_twice(tokens);
  // The folder's thread stands still where it opens this one.
  const fs::path pipe = page_file(slow, 0), unread = page_file(aborted, 0);
  fs::remove(pipe);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  damage(unread);
  Instance instance(path_);
  EXPECT_TRUE(instance.send(3, with_end(slow, 3)));
  EXPECT_TRUE(instance.send(4, with_end(aborted, 4)));
  instance.saved.cancel(ReqId{4});
  instance.held.erase(4);
  instance.sent.erase(4);
  instance.turn();
  EXPECT_TRUE(instance.send(5, with_end(next, 5)));
  ::close(::open(pipe.c_str(), O_WRONLY | O_CLOEXEC));  // when the thread is there
  instance.run();
  instance.expect_right();
  EXPECT_EQ(instance.cached(5), 400);
  EXPECT_TRUE(fs::exists(unread)) << "it would have been removed";
}

// Pages that do not fit are computed in turn, as without a disk.
TEST_F(SavedPrefixesTest, APoolThatIsTooSmallCostsTimeAlone) {
  const std::vector<int32_t> system = prompt(400);
  use_twice(system);
  Instance instance(path_, Instance::format_of(1), 40);
  instance.server.receive(Harness::request(1, prompt(300, 77), 60));
  instance.turn();
  EXPECT_TRUE(instance.send(3, with_end(system, 3)));
  for (int i = 0; i < 20; ++i) instance.turn();
  instance.now_ms += kRestoreStallMs;
  instance.run();
  instance.expect_right();
}

TEST_F(SavedPrefixesTest, WithoutAChecksumOfTheWeightsNothingIsKept) {
  Instance instance(path_);
  instance.format.weights_checksum = 0;
  const std::vector<int32_t> system = prompt(400);
  SavedPrefixes none(
      instance.server.scheduler.transfers(),
      []() -> Result<wire::KvFormat> { return error(StatusCode::kUnavailable, "not known"); },
      std::make_unique<PageIo>(PageFolder::open(path_, 1u << 30).value()));
  EXPECT_FALSE(none.begin(ReqId{1}, system, "", 0));
  EXPECT_FALSE(none.begin(ReqId{2}, system, "", 0));
  EXPECT_FALSE(none.waits());
}

}  // namespace
}  // namespace millrace
