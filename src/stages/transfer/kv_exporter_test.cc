// What P sends where D's messages and full connections meet, with a real scheduler and an environment of the test.
#include "stages/transfer/kv_exporter.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "stages/transfer/testing/transfer_net.h"

namespace millrace::transfer {
namespace {

using millrace::testing::Harness;
using millrace::testing::kFakeTokenBytes;
using millrace::testing::kNetPage;

// P's: what is sent stays here.
class SendingEnv final : public TransferEnv {
 public:
  explicit SendingEnv(Harness& server) : server_(server) {}
  Status send(const std::string&, wire::Message& message) override {
    if (full) return error(StatusCode::kResourceExhausted, "the connection is full");
    if (const auto* part = std::get_if<wire::KvPart>(&message)) numbers.push_back(part->number);
    return ok_status();
  }
  void connect(const std::string&) override {}
  PageTransfers& pages() override { return server_.scheduler.transfers(); }
  Status offer(const wire::Peer&, SharedBytes, wire::KvPart&) override { return ok_status(); }
  void drop_offers(const TransferId&) override {}
  const wire::Peer& reader() const override { return reader_; }
  Result<uint64_t> fetch(const wire::KvPart&, std::size_t) override {
    return error(StatusCode::kUnsupported, "P reads nothing");
  }
  void drop_fetches(const TransferId&) override {}
  Result<wire::KvFormat> format() const override {
    return wire::KvFormat{.model_hash = 7,
                          .page_size = kNetPage,
                          .page_bytes = kNetPage * kFakeTokenBytes,
                          .kv_dtype = "f32",
                          .isa = "ref"};
  }

  bool full = false;
  std::vector<uint64_t> numbers;  // of the parts sent

 private:
  Harness& server_;
  const wire::Peer reader_;
};

// D asks for all parts again and then takes the first one after all, while its repeat waits for the connection.
TEST(KvExporter, APartThatIsTakenWhileItWaitsToBeSentAgainIsNotSent) {
  log_init("test", LogLevel::kOff);
  Harness p(millrace::testing::net_facts(), {.chunked_prefill_tokens = 64}, millrace::testing::endless());
  SendingEnv env(p);
  KvExporter exporter(env,
                      PrefillJobs{.begin = [&](uint64_t job, const std::vector<int32_t>& tokens,
                                               const std::string&) { p.receive(Harness::request(job, tokens, 0)); },
                                  .cancel = [&](uint64_t job) { p.abort(job); }});
  exporter.on_want({.id = {"x"},
                    .reply_to = "d",
                    .format = env.format().value(),
                    .tokens = millrace::testing::prompt(256),
                    .reader = {.stage = "d"}},
                   0);
  for (int turn = 0; turn < 100 && env.numbers.size() < 2; ++turn) {
    p.step();
    exporter.step(0);
  }
  ASSERT_EQ(env.numbers, (std::vector<uint64_t>{0, 1}));
  env.full = true;
  exporter.on_taken({.id = {"x"}, .parts = 0, .again = true, .reply_to = "d"}, 0);
  exporter.step(0);  // reads part 0, which has to wait
  exporter.on_taken({.id = {"x"}, .parts = 1, .again = false, .reply_to = "d"}, 0);
  env.full = false;
  env.numbers.clear();
  exporter.step(0);
  ASSERT_FALSE(env.numbers.empty());
  EXPECT_EQ(env.numbers.front(), 1u);
  exporter.stop(error(StatusCode::kCancelled, "the test ends"), 0);
  p.run();
}

}  // namespace
}  // namespace millrace::transfer
