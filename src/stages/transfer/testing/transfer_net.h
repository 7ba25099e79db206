// TransferNet: a server that computes prompts (P) and one that generates (D), with real schedulers over fake runners,
// their ends of transfers, and a network and a clock that a test controls: loss, repeats, reordering, damage, silence.
// For tests only.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>

#include "scheduler/testing/harness.h"
#include "scheduler/testing/predict.h"
#include "stages/transfer/kv_exporter.h"
#include "stages/transfer/kv_importer.h"
#include "stages/transfer/limits.h"

namespace millrace::testing {

inline constexpr int32_t kNetPage = 16;

inline RunnerFacts net_facts(int32_t pages = 256) {
  RunnerFacts facts{1000, 600, kNetPage, pages};
  facts.weight_version = 1;
  facts.kv_page_bytes = kNetPage * kFakeTokenBytes;
  facts.layers = kFakeLayers;
  return facts;
}

class TransferNet {
 public:
  // `jobs`: P computes what is wanted; else pages are those of its requests.
  explicit TransferNet(bool jobs = true, int32_t p_pages = 256, int32_t d_pages = 256)
      : p(net_facts(p_pages), {.chunked_prefill_tokens = 64}, endless()),
        d(net_facts(d_pages), {.chunked_prefill_tokens = 64}, endless()),
        p_env_(*this, p),
        d_env_(*this, d),
        exporter(p_env_, jobs ? std::optional(make_jobs()) : std::nullopt, 1),
        importer(d_env_, {.reply_to = "d", .peers = 1, .id_seed = 5, .min_tokens = transfer::kMinRemoteTokens}) {
    importer.set_peers({{"p", 1}}, now_ms);
  }

  // A request of D's client.
  Result<bool> send(uint64_t id, const std::vector<int32_t>& prompt, int32_t max_tokens = 8,
                    const wire::RemoteKv* remote = nullptr, const std::string& extra_key = "") {
    wire::TokenizedRequest request = Harness::request(id, prompt, max_tokens);
    request.extra_key = extra_key;
    ASSIGN_OR_RETURN(const bool waits, importer.begin({ReqId{id}, request.prompt, request.extra_key, remote}, now_ms));
    sent[id] = request;
    if (waits) {
      held[id] = request;
    } else {
      d.receive(request);
    }
    return waits;
  }
  void abort(uint64_t id) {
    importer.cancel(ReqId{id}, now_ms);
    if (held.erase(id) == 0) d.abort(id);
  }

  // P's process dies and another one begins, without its requests, its cache and its transfers; D knows with the next
  // table of peers, which a test publishes.
  void restart_p() {
    p_silent_ = true;
    exporter.stop(error(StatusCode::kUnavailable, "it was killed"), now_ms);
    p_silent_ = false;
    std::erase_if(queue_, [](const auto& each) { return each.second.first == "p"; });
    at_p_.clear();
    offers_.clear();
    p.run();
    EXPECT_TRUE(p.scheduler.flush_cache().ok());
    ++p_incarnation_;
  }
  void publish_peers() { importer.set_peers({{"p", p_incarnation_}}, now_ms); }

  // One turn of both servers, and what the network delivers meanwhile.
  void turn(int64_t ms = 1) {
    now_ms += ms;
    deliver();
    if (!p_frozen) turn_p();
    turn_d();
  }
  // Until no request waits for a transfer and D is idle.
  void run(int most = 100'000) {
    for (int i = 0; i < most; ++i) {
      turn();
      if (held.empty() && !d.scheduler.busy() && importer.open() == 0) return;
    }
    ADD_FAILURE() << held.size() << " requests wait after " << most << " turns";
  }
  // All texts are right, and nothing is left at either server after the leases' time.
  void expect_clean_end() {
    p_frozen = false;
    for (int64_t ms = 0; ms <= 2 * transfer::kLeaseMs; ms += 100) turn(100);
    EXPECT_EQ(importer.open(), 0u);
    EXPECT_EQ(exporter.open(), 0u);
    EXPECT_TRUE(offers_.empty());
    EXPECT_TRUE(fetches_.empty());
    p.run();
    d.run();
    EXPECT_EQ(p.scheduler.facts().leases, 0);
    p.expect_clean_end();
    d.expect_clean_end();
    for (const auto& [id, request] : sent) {
      const Outcome& outcome = d.outcomes[id];
      if (!outcome.finish || outcome.finish->reason == wire::FinishReason::kAborted) continue;
      EXPECT_EQ(outcome.tokens, predict(request, endless(), 1, 600).tokens) << "request " << id;
    }
  }

  int64_t now_ms = 1'000'000;
  bool p_frozen = false;  // it neither computes nor reads
  bool p_gone = false;    // there is no server
  // What becomes of a message: how many copies, and how late. Unset: one, at once.
  struct Fate {
    int copies = 1;
    int64_t late_ms = 0;
  };
  std::function<Fate(const std::string& to, wire::Message& message)> fate;
  std::function<void(const wire::Message&)> on_deliver;
  bool relay = true;  // it carries the bytes of parts; else they are in the messages
  // Of a part whose bytes are read: an error, or how late they come. Unset: at once.
  std::function<Result<int64_t>(const wire::KvPart& part)> fetch_fate;
  std::size_t most_offers = SIZE_MAX;  // that the relay has capacity for
  Harness p, d;
  std::optional<Status> p_format_error;
  wire::KvFormat p_format{.model_hash = 7,
                          .page_size = kNetPage,
                          .page_bytes = kNetPage * kFakeTokenBytes,
                          .kv_dtype = "f32",
                          .isa = "ref"};
  wire::KvFormat d_format = p_format;
  std::map<uint64_t, wire::TokenizedRequest> held;
  std::map<uint64_t, wire::TokenizedRequest> sent;
  std::map<uint64_t, int32_t> transferred;  // tokens, by request
  uint64_t jobs_begun = 0, jobs_cancelled = 0;
  uint64_t parts_of_layers = 0;  // that D got, of pages whose other layers were not there

 private:
  class Env final : public transfer::TransferEnv {
   public:
    Env(TransferNet& net, Harness& server) : net_(net), server_(server) {}
    Status send(const std::string& endpoint, wire::Message& message) override { return net_.post(endpoint, message); }
    void connect(const std::string&) override {}
    PageTransfers& pages() override { return server_.scheduler.transfers(); }
    Result<wire::KvFormat> format() const override {
      if (&server_ == &net_.p && net_.p_format_error) return *net_.p_format_error;
      return &server_ == &net_.p ? net_.p_format : net_.d_format;
    }
    Status offer(const wire::Peer& reader, SharedBytes bytes, wire::KvPart& part) override {
      EXPECT_EQ(reader.stage, "d");
      return net_.offer(reader, bytes, part);
    }
    void drop_offers(const TransferId& id) override {
      std::erase_if(net_.offers_, [&](const auto& each) { return each.second.first == id; });
    }
    const wire::Peer& reader() const override { return net_.reader_; }
    Result<uint64_t> fetch(const wire::KvPart& part, std::size_t size_bytes) override {
      return net_.begin_fetch(part, size_bytes);
    }
    void drop_fetches(const TransferId& id) override {
      std::erase_if(net_.fetches_, [&](const auto& each) { return each.second.id == id; });
    }

   private:
    TransferNet& net_;
    Harness& server_;
  };

  transfer::PrefillJobs make_jobs() {
    return {.begin =
                [this](uint64_t job, const std::vector<int32_t>& tokens, const std::string& extra_key) {
                  ++jobs_begun;
                  wire::TokenizedRequest request = Harness::request(job, tokens, 0);
                  request.extra_key = extra_key;
                  p.receive(request);
                },
            .cancel =
                [this](uint64_t job) {
                  ++jobs_cancelled;
                  p.abort(job);
                }};
  }

  Status offer(const wire::Peer& reader, const SharedBytes& bytes, wire::KvPart& part) {
    std::string copy(reinterpret_cast<const char*>(bytes.data()), bytes.size_bytes());
    if (!relay || reader.relays.empty()) {
      part.bytes.bytes = std::move(copy);
      return ok_status();
    }
    if (offers_.size() >= most_offers) return error(StatusCode::kResourceExhausted, "no credit is left");
    part.relay = "sim";
    part.descriptor.bytes = std::to_string(++last_offer_);
    offers_[part.descriptor.bytes] = {part.id, std::move(copy)};
    return ok_status();
  }

  // The bytes are read when they come, so a drop meanwhile is seen.
  Result<uint64_t> begin_fetch(const wire::KvPart& part, std::size_t size_bytes) {
    Result<int64_t> late_ms = fetch_fate ? fetch_fate(part) : 0;
    const uint64_t ticket = ++last_fetch_;
    fetches_.emplace(now_ms + (late_ms.ok() ? *late_ms : 1),
                     Fetch{part.id, ticket, late_ms.status(), part.descriptor.bytes, size_bytes});
    return ticket;
  }

  void end_fetches() {
    for (auto it = fetches_.begin(); it != fetches_.end() && it->first <= now_ms; it = fetches_.begin()) {
      const Fetch fetch = std::move(it->second);
      fetches_.erase(it);
      transfer::TransferEnv::Fetched fetched{fetch.id, fetch.ticket, fetch.status, {}};
      const auto offer = offers_.find(fetch.descriptor);
      if (fetched.status.ok() && offer == offers_.end()) {
        fetched.status = error(StatusCode::kUnavailable, "the put is over");
      } else if (fetched.status.ok()) {
        EXPECT_EQ(offer->second.second.size(), fetch.size_bytes);
        fetched.bytes = SharedBytes::of(offer->second.second);
        offers_.erase(offer);
      }
      importer.on_fetched(std::move(fetched), now_ms);
    }
  }

  Status post(const std::string& to, wire::Message& message) {
    if (to == "p" && p_gone) return error(StatusCode::kUnavailable, "no server is connected");
    if (to != "p" && p_silent_) return ok_status();
    Fate fate_of = fate ? fate(to, message) : Fate{};
    for (int i = 0; i < fate_of.copies; ++i) {
      queue_.emplace(now_ms + fate_of.late_ms + i, std::pair(to, message));
    }
    return ok_status();
  }

  void deliver() {
    for (auto it = queue_.begin(); it != queue_.end() && it->first <= now_ms;) {
      const auto [to, message] = std::move(it->second);
      it = queue_.erase(it);
      if (to == "p" && p_gone) continue;
      if (to == "p" && p_frozen) {
        at_p_.push_back(message);
      } else {
        receive(to, message);
      }
    }
    if (p_frozen) return;
    for (const wire::Message& message : std::exchange(at_p_, {})) receive("p", message);
  }

  void receive(const std::string& to, const wire::Message& message) {
    if (on_deliver) on_deliver(message);
    if (to == "p") {
      if (const auto* want = std::get_if<wire::KvWant>(&message)) exporter.on_want(*want, now_ms);
      if (const auto* taken = std::get_if<wire::KvTaken>(&message)) exporter.on_taken(*taken, now_ms);
      if (const auto* end = std::get_if<wire::KvEnd>(&message)) exporter.on_end(*end, now_ms);
    } else if (to == "d") {
      if (const auto* part = std::get_if<wire::KvPart>(&message)) {
        parts_of_layers += part->layers < kFakeLayers;
        importer.on_part(*part, now_ms);
      }
      if (const auto* end = std::get_if<wire::KvEnd>(&message)) importer.on_end(*end, now_ms);
    }
  }

  void turn_p() {
    p.step();
    for (const auto& [id, outcome] : p.outcomes) {
      if (!outcome.finish || !ended_jobs_.insert(id).second) continue;
      const bool failed = outcome.finish->reason == wire::FinishReason::kError;
      exporter.on_job_end(id, failed ? Status(outcome.finish->code, outcome.finish->message) : ok_status());
    }
    exporter.step(now_ms);
  }

  void turn_d() {
    d.step();
    for (const PageTransfers::Done& done : d.scheduler.transfers().take_done()) importer.on_written(done, now_ms);
    end_fetches();
    importer.step(now_ms);
    for (const transfer::KvImporter::Ready& ready : importer.take_ready()) {
      const auto request = held.extract(ready.request.value);
      ASSERT_FALSE(request.empty());
      transferred[ready.request.value] = ready.transferred_tokens;
      d.receive(request.mapped());
    }
  }

  struct Fetch {
    TransferId id;
    uint64_t ticket = 0;
    Status status;
    std::string descriptor;
    std::size_t size_bytes = 0;
  };

  const wire::Peer reader_{.stage = "d", .relays = {{"sim", {"d"}}}};
  Env p_env_, d_env_;
  std::map<std::string, std::pair<TransferId, std::string>> offers_;  // by descriptor: bytes
  std::multimap<int64_t, Fetch> fetches_;                             // by their time
  uint64_t last_offer_ = 0, last_fetch_ = 0;
  std::multimap<int64_t, std::pair<std::string, wire::Message>> queue_;
  std::vector<wire::Message> at_p_;  // of a frozen P
  bool p_silent_ = false;
  uint64_t p_incarnation_ = 1;
  std::set<uint64_t> ended_jobs_;

 public:
  transfer::KvExporter exporter;
  transfer::KvImporter importer;
};

}  // namespace millrace::testing
