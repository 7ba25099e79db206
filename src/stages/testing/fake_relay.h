// FakeRelay: a relay in virtual time for tests of the stage loop. One hub stands for the data plane; every stage has an
// instance. Gets take a random time, so they end out of order; credits may be few; lent bytes are counted, and a put is
// over when its reader released them. hold() keeps gets from ending until release().
//
// Thread safety: one thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "relay/relay.h"

namespace millrace::testing {

struct FakeHub {
  struct Put {
    PutRequest request;
    std::string owner;
    int64_t until_ms = 0;
  };
  struct Get {
    GetRequest request;
    std::string reader;
    uint64_t put = 0;
    int64_t at_ms = 0;
  };
  uint64_t seed = 1;
  int64_t now_ms = 0;
  int64_t max_delay_ms = 0;
  int64_t lease_ms = 30'000;
  int credits = 64;  // of each instance
  double get_fails = 0;
  Status get_error = internal_error("a wrong checksum");
  bool holds_gets = false;
  uint64_t next = 1;
  std::map<uint64_t, Put> puts;
  std::map<uint64_t, Get> gets;
  std::map<std::string, int> open_puts;
  std::vector<uint64_t> released;
  int64_t lent = 0;
  uint64_t total_puts = 0;

  double uniform() { return philox_uniform(seed, next++, 77); }

  void end_put(uint64_t id, const Status& status) {
    const auto found = puts.find(id);
    if (found == puts.end()) return;
    auto done = std::move(found->second.request.done);
    --open_puts[found->second.owner];
    puts.erase(found);
    done(status);
  }
  void end_get(uint64_t id, Result<std::vector<SharedBytes>> result) {
    auto done = std::move(gets.at(id).request.done);
    gets.erase(id);
    done(std::move(result));
  }
  // The parts, with an owner that reports to the hub when the last holder releases them.
  Result<std::vector<SharedBytes>> lend(const Get& get) {
    const auto found = puts.find(get.put);
    if (found == puts.end()) return error(StatusCode::kUnavailable, "the put is over");
    if (uniform() < get_fails) return get_error;
    const std::vector<SharedBytes>& parts = found->second.request.parts;
    if (parts.size() != get.request.sizes.size()) return invalid_argument("other parts than were announced");
    auto all = std::make_shared<std::vector<SharedBytes>>(parts);
    ++lent;
    const std::shared_ptr<void> owner(all.get(), [this, all, id = get.put](void*) {
      --lent;
      released.push_back(id);
    });
    std::vector<SharedBytes> out;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].size_bytes() != get.request.sizes[i]) return invalid_argument("another size than was announced");
      out.emplace_back(owner, parts[i].data(), parts[i].size_bytes());
    }
    return out;
  }
  // Everything that is due.
  void step(int64_t now) {
    now_ms = now;
    std::vector<uint64_t> due;
    for (const auto& [id, get] : gets) {
      if (!holds_gets && get.at_ms <= now) due.push_back(id);
    }
    for (const uint64_t id : due) {
      if (gets.contains(id)) end_get(id, lend(gets.at(id)));
    }
    std::vector<uint64_t> over;
    over.swap(released);
    for (const uint64_t id : over) end_put(id, ok_status());
    due.clear();
    for (const auto& [id, put] : puts) {
      if (put.until_ms <= now) due.push_back(id);
    }
    for (const uint64_t id : due) end_put(id, error(StatusCode::kDeadline, "the lease ran out"));
  }
  // What a dead process had.
  void forget(const std::string& owner) {
    std::erase_if(puts, [&](const auto& put) { return put.second.owner == owner; });
    std::erase_if(gets, [&](const auto& get) { return get.second.reader == owner; });
    open_puts[owner] = 0;
  }
};

class FakeRelay : public Relay {
 public:
  FakeRelay(FakeHub& hub, std::string name) : hub_(hub), name_(std::move(name)) {}
  RelayCapabilities capabilities() const override {
    return {.name = "fake", .same_process = true, .same_host = true, .across_hosts = true};
  }
  std::string address() const override { return name_; }
  Result<PutTicket> put(PutRequest request) override {
    if (hub_.open_puts[name_] >= hub_.credits) return error(StatusCode::kResourceExhausted, "no credit");
    ++hub_.open_puts[name_];
    ++hub_.total_puts;
    const uint64_t id = hub_.next++;
    hub_.puts[id] = {.request = std::move(request), .owner = name_, .until_ms = hub_.now_ms + hub_.lease_ms};
    return PutTicket{.op = {id}, .descriptor = std::to_string(id)};
  }
  Result<RelayOp> get(GetRequest request) override {
    const uint64_t id = hub_.next++;
    const uint64_t put = std::stoull(request.descriptor);
    const int64_t at_ms = hub_.now_ms + static_cast<int64_t>(hub_.uniform() * static_cast<double>(hub_.max_delay_ms));
    hub_.gets[id] = {.request = std::move(request), .reader = name_, .put = put, .at_ms = at_ms};
    return RelayOp{id};
  }
  void cancel(RelayOp op) override {
    const Status status = error(StatusCode::kCancelled, "cancelled");
    if (hub_.gets.contains(op.value)) hub_.end_get(op.value, status);
    hub_.end_put(op.value, status);
  }
  void cleanup(ReqId) override {}
  RelayBooks books() const override { return {.puts = hub_.open_puts[name_]}; }
  void close() override {}

 private:
  FakeHub& hub_;
  const std::string name_;
};

}  // namespace millrace::testing
