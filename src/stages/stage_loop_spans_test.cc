// Spans of traced requests: what a stage reports of each, and that there are none of others.
#include "base/trace_context.h"
#include "stages/testing/one_stage.h"

namespace millrace::testing {
namespace {

// Its clock goes on by one with each look.
struct RecordingSink : SpanSink {
  void add(Span span) override { spans.push_back(std::move(span)); }
  int64_t now_ns() const override { return ++time_ns; }
  std::vector<Span> spans;
  mutable int64_t time_ns = 1'700'000'000'000'000'000;
};

class StageLoopSpans : public OneStage {
 protected:
  StageLoopSpans() {
    spans_ = sink_;
    traceparent_ = kParent;
  }
  void SetUp() override {
    OneStage::SetUp();
    spec_.worker = "scripted";
    spec_.next = {"x"};
    config_.self.replica = 2;
  }
  void abort(uint64_t id) {
    loop_->handle(wire::AbortRequest{.id = {id}}, now_);
    run(0);
  }
  // The one span that there is.
  Span only() {
    EXPECT_EQ(sink_->spans.size(), 1u);
    return sink_->spans.empty() ? Span() : sink_->spans.front();
  }
  static SpanValue value_of(const Span& span, const std::string& name) {
    for (const auto& [key, value] : span.attributes) {
      if (key == name) return value;
    }
    ADD_FAILURE() << "no attribute " << name;
    return {};
  }
  static int64_t count_of(const Span& span, const std::string& name) {
    return std::get<int64_t>(value_of(span, "millrace.stage." + name));
  }

  static constexpr const char* kParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
};

TEST_F(StageLoopSpans, OneThatIsDoneIsOneSpanBelowItsServers) {
  result(with_tensor(1));
  make();
  receive(lying_payload(1, "a", put_payload(with_tensor(1, 8192), "a")));
  run(1);
  EXPECT_TRUE(sink_->spans.empty());  // the next stage has not fetched it
  const int64_t sent_ns = sink_->time_ns;
  take(payload_in(out("x")->chunks().at(0)));
  const Span span = only();
  EXPECT_EQ(span.end_ns, sent_ns) << "the wait for the next stage is that one's";
  EXPECT_EQ(span.trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(span.parent_id, "b7ad6b7169203331");
  EXPECT_TRUE(parse_traceparent(make_traceparent(span.trace_id, span.span_id)).has_value());
  EXPECT_EQ(span.name, "stage mid");
  EXPECT_LT(span.begin_ns, span.end_ns);
  EXPECT_FALSE(span.failed);
  EXPECT_EQ(std::get<std::string>(value_of(span, "millrace.stage.name")), "mid");
  EXPECT_EQ(std::get<std::string>(value_of(span, "millrace.stage.worker")), "scripted");
  EXPECT_EQ(count_of(span, "replica"), 2);
  EXPECT_EQ(count_of(span, "request"), 1);
  EXPECT_EQ(count_of(span, "chunks_in"), 1);
  EXPECT_EQ(count_of(span, "chunks_out"), 1);
  EXPECT_EQ(count_of(span, "relay_bytes_in"), 8192);
  EXPECT_EQ(count_of(span, "relay_bytes_out"), 4096);
  // The next stage gets the server's span for its parent too, and so does the worker.
  EXPECT_EQ(out("x")->chunks().at(0).opening->traceparent, kParent);
  EXPECT_EQ(log_->calls, (std::vector<std::string>{"trace " + traceparent_, "start 1", "drop 1"}));
}

TEST_F(StageLoopSpans, AStreamIsOneSpanHoweverManyChunksItHas) {
  spec_.stream_to = {"x"};
  make();
  receive(payload(1, "c", number(1)));
  for (uint64_t n = 0; n < 40; ++n) receive(chunk(1, "a", n));
  receive(done(1, "a", 40));
  for (int n = 0; n < 3; ++n) {
    work(1, [](Emit& emit) { emit.chunk({1}, number(1)); });
  }
  EXPECT_TRUE(sink_->spans.empty());  // it runs
  work(1, [](Emit& emit) { emit.result({1}, number(1)); });
  const Span span = only();
  EXPECT_EQ(count_of(span, "chunks_in"), 42);  // and the payload, and the end
  EXPECT_EQ(count_of(span, "chunks_out"), static_cast<int64_t>(out("x")->chunks().size()));
  EXPECT_EQ(count_of(span, "relay_bytes_in"), 0);
}

TEST_F(StageLoopSpans, AFailureIsAFailedSpan) {
  log_->on_start = [](ReqId id, const Value&, Emit& emit) { emit.fail(id, invalid_argument("no such picture")); };
  make();
  receive(payload(1, "a", number(1)));
  const Span span = only();
  EXPECT_TRUE(span.failed);
  EXPECT_EQ(span.error, "mid: no such picture");
  EXPECT_EQ(std::get<std::string>(value_of(span, "error.type")), "invalid_argument");
  run(10);
  EXPECT_EQ(sink_->spans.size(), 1u);
}

TEST_F(StageLoopSpans, AnAbortIsAFailedSpan) {
  make();
  receive(payload(1, "a", number(1)));
  abort(1);
  EXPECT_EQ(only().error, "the request was aborted");
  abort(1);
  abort(2);  // one that never came
  EXPECT_EQ(sink_->spans.size(), 1u);
  expect_clean();
}

TEST_F(StageLoopSpans, AStageThatFailsHasAFailedSpanOfEachRequest) {
  make();
  receive(payload(1, "a", number(1)));
  receive(payload(2, "a", number(1)));
  loop_->fail_stage(internal_error("the worker crashed"));
  ASSERT_EQ(sink_->spans.size(), 2u);
  for (const Span& span : sink_->spans) EXPECT_EQ(span.error, "mid: the worker crashed");
}

TEST_F(StageLoopSpans, OneThatIsRefusedIsAFailedSpanToo) {
  spec_.resources.max_requests = 1;
  make();
  receive(payload(1, "a", number(1)));
  receive(payload(2, "a", number(1)));
  const Span span = only();
  EXPECT_TRUE(span.failed);
  EXPECT_NE(span.error.find("2 requests are in the stage; wanted at most 1"), std::string::npos) << span.error;
}

TEST_F(StageLoopSpans, ALostLeaseEndsThem) {
  keep_lease_ = false;
  make();
  receive(payload(1, "a", number(1)));
  run(60'000);
  ASSERT_GE(leases_lost_, 1);
  EXPECT_EQ(only().error, "the stage lost its lease");
}

TEST_F(StageLoopSpans, OneThatIsNotTracedHasNone) {
  traceparent_.clear();
  result(number(1));
  make();
  receive(payload(1, "a", number(1)));
  run(1);
  EXPECT_TRUE(sink_->spans.empty());
  EXPECT_EQ(out("x")->chunks().at(0).opening->traceparent, "");
  EXPECT_TRUE(called("start 1"));
}

TEST_F(StageLoopSpans, AProcessWithoutAnExporterPassesTheTraceOn) {
  spans_.reset();
  result(number(1));
  make();
  receive(payload(1, "a", number(1)));
  run(1);
  EXPECT_EQ(out("x")->chunks().at(0).opening->traceparent, kParent);
}

}  // namespace
}  // namespace millrace::testing
