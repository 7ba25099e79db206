// What goes wrong under the UCX relay: bytes that come damaged, more arenas of a writer's than are mapped at once, and
// sends that end after their endpoint was closed.
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <vector>

#include "relay/testing/fixture.h"
#include "relay/ucx/ucx_api.h"
#include "relay/ucx/ucx_channel.h"
#include "relay/ucx/ucx_link.h"
#include "relay/ucx/ucx_relay.h"

namespace millrace::ucx {
namespace {

using namespace relay_testing;

const UcxApi* g_api = nullptr;     // the library's
std::atomic<int> g_damage{-1};     // which segment of every put is damaged, in the order of first sends; -1: none
std::atomic<int> g_damaged{0};     // sends
std::atomic<int> g_by_message{0};  // segments

// A bit of the payload changes between the writer, which summed it up, and the wire: whenever that segment is sent, for
// a busy machine may lose the first link and ask again over the next. The writer's own bytes stay as they are.
ucs_status_ptr_t damaging_send(ucp_ep_h ep, unsigned id, const void* head, size_t head_bytes, const void* bytes,
                               size_t count, const ucp_request_param_t* params) {
  static std::map<uint64_t, std::vector<uint64_t>> offsets;  // of each put's segments; the writer's thread alone sends
  static std::deque<std::vector<std::byte>> copies;          // UCX reads them until the send ends
  const Result<session::Header> frame = session::decode(static_cast<const Head*>(head)->header);
  if (frame.ok() && frame->type == session::FrameType::kData) {
    ++g_by_message;
    std::vector<uint64_t>& seen = offsets[frame->op];
    const auto at = std::ranges::find(seen, frame->offset);
    const int segment = static_cast<int>(at - seen.begin());
    if (at == seen.end()) seen.push_back(frame->offset);
    if (count > 0 && segment == g_damage.load()) {
      const auto* from = static_cast<const std::byte*>(bytes);
      std::vector<std::byte>& copy = copies.emplace_back(from, from + count);
      copy[count / 2] ^= std::byte{16};
      bytes = copy.data();
      ++g_damaged;
    }
  }
  return g_api->ucp_am_send_nbx(ep, id, head, head_bytes, bytes, count, params);
}

// Why it cannot run; else the table is there.
std::string set_up(UcxApi& api, const char* transports) {
  const Result<const UcxApi*> loaded = load_ucx(kUcxLibrary);
  if (!loaded.ok()) return loaded.status().to_string();
  g_api = *loaded;
  api = *g_api;
  api.ucp_am_send_nbx = &damaging_send;
  RelayOptions options;
  options.listen = transports;
  const auto relay = make_ucx_relay_over(api, options);
  return relay.ok() ? "" : relay.status().to_string();
}

// Each segment in turn: small parts together, a part by itself, ranges of a large one.
TEST(UcxAccidents, AWrongChecksumIsAnErrorAndNeverTheWrongBytes) {
  constexpr const char* kTransports = "ucx:tcp,self@lo";  // no pool: everything comes by message
  static UcxApi api;
  if (const std::string why = set_up(api, kTransports); !why.empty()) GTEST_SKIP() << why;
  RelayOptions options;
  options.listen = kTransports;
  auto writer = make_ucx_relay_over(api, options), reader = make_ucx_relay_over(api, options);
  ASSERT_TRUE(writer.ok() && reader.ok());
  const Sizes sizes = {100, 200, 50'000, 9 * kMib};
  constexpr int kSegments = 5;
  for (int damaged = 0; damaged < kSegments; ++damaged) {
    for (const bool direct : {false, true}) {
      g_damage = damaged;
      g_damaged = 0;
      Sent sent = send(**writer, 7, sizes);
      ASSERT_TRUE(sent.ticket.ok());
      GetRequest request{.descriptor = sent.ticket->descriptor, .sizes = sizes};
      std::vector<std::vector<std::byte>> memory;
      for (const std::size_t size : sizes) memory.emplace_back(size);
      for (std::size_t i = 0; direct && i < sizes.size(); ++i) request.destination.emplace_back(memory[i]);
      Received received;
      request.done = received.end.callback();
      received.op = (*reader)->get(std::move(request));
      const Result<Parts> parts = received.outcome();
      ASSERT_FALSE(parts.ok()) << "segment " << damaged;
      EXPECT_EQ(parts.status().code(), StatusCode::kInternal) << parts.status().to_string();
      EXPECT_NE(parts.status().message().find("wrong checksum"), std::string::npos) << parts.status().to_string();
      EXPECT_GT(g_damaged, 0) << "segment " << damaged << " was not damaged";
      EXPECT_EQ(sent.end.count(), 0);  // it stays open for another get
      (*writer)->cancel(sent.ticket->op);
      expect_put_end(sent, {StatusCode::kCancelled});
    }
  }
  g_damage = -1;
  expect_round_trip(**writer, **reader, 8, sizes);  // the pair is as good as ever
  expect_quiet(**writer);
  expect_quiet(**reader);
}

// With every get under way at once, each out of an arena of its own: none may be unmapped under a get that copies from
// it. What finds none comes by message.
TEST(UcxAccidents, MoreArenasThanAreMappedAtOnce) {
  constexpr const char* kTransports = "ucx:posix,cma,tcp,self@lo";
  constexpr std::size_t kArenas = kMaxArenaMaps + 4, kPut = 17 * kMib, kArena = 32 * kMib;
  static UcxApi api;
  if (const std::string why = set_up(api, kTransports); !why.empty()) GTEST_SKIP() << why;
  struct statvfs shm {};
  const bool enough = ::statvfs("/dev/shm", &shm) == 0 && shm.f_bavail * shm.f_frsize > (kArenas + 4) * kArena;
  const auto memory = static_cast<std::size_t>(::sysconf(_SC_AVPHYS_PAGES)) * static_cast<std::size_t>(::getpagesize());
  if (!enough || memory < 2 * kArenas * kArena) GTEST_SKIP() << "it takes two gigabytes, of them half in /dev/shm";
  RelayOptions options;
  options.listen = kTransports;
  options.pool_bytes = kArenas * kArena;
  // Half a gigabyte, much of it by messages, with a sanitizer or on a starved core: a put waits for all those before
  // it, and a side that copies sends nothing meanwhile.
  options.lease_ms = 10 * kPatienceMs;
  options.silent_ms = kPatienceMs;
  auto writer = make_ucx_relay_over(api, options), reader = make_ucx_relay_over(api, options);
  ASSERT_TRUE(writer.ok() && reader.ok());
  g_by_message = 0;
  std::vector<Sent> sent(kArenas);
  for (std::size_t i = 0; i < kArenas; ++i) {
    sent[i] = send(**writer, i, {kPut});
    ASSERT_TRUE(sent[i].ticket.ok()) << sent[i].ticket.status().to_string();
  }
  std::vector<Received> received;
  for (const Sent& one : sent) received.push_back(receive(**reader, one, options.lease_ms));
  for (std::size_t i = 0; i < kArenas; ++i) {
    const Result<Parts> parts = received[i].outcome();
    ASSERT_TRUE(parts.ok()) << i << ": " << parts.status().to_string();
    EXPECT_EQ(differs(i, {kPut}, *parts), "") << i;
  }
  EXPECT_GT(g_by_message, 0) << "all came out of arenas: the test tests nothing";
  for (Sent& one : sent) expect_put_end(one, {StatusCode::kOk});
  // A get that has copied frees its arena: later ones come out of their arenas again.
  g_by_message = 0;
  sent = std::vector<Sent>(1);
  sent[0] = send(**writer, 99, {kPut});
  expect_received(**reader, sent[0]);
  EXPECT_EQ(g_by_message, 0);
}

// A forced close is over at once, and UCX ends the sends of the endpoint later. A link that was freed before could have
// left its address to the next one, whose counts the late ends then changed.
TEST(UcxAccidents, AClosedLinkStaysUntilItsSendsHaveEnded) {
  static UcxApi api;
  if (const std::string why = set_up(api, "ucx:tcp,self@lo"); !why.empty()) GTEST_SKIP() << why;
  static std::vector<ucp_request_param_t> pending;  // sends that UCX has accepted and not ended
  static int request = 0;
  api.ucp_ep_create = [](ucp_worker_h, const ucp_ep_params_t*, ucp_ep_h*) { return UCS_OK; };
  api.ucp_ep_close_nbx = [](ucp_ep_h, const ucp_request_param_t*) -> ucs_status_ptr_t { return nullptr; };
  api.ucp_am_send_nbx = [](ucp_ep_h, unsigned, const void*, size_t, const void*, size_t,
                           const ucp_request_param_t* params) -> ucs_status_ptr_t {
    pending.push_back(*params);
    return &request;
  };
  api.ucp_request_free = [](void*) {};
  session::Core core{RelayOptions{}};
  ASSERT_TRUE(core.loop.open().ok());
  UcxChannel channel(core, api, choose_transports("ucx:tcp,self@lo", nullptr, nullptr).value());
  ASSERT_TRUE(channel.open().ok());
  session::Target target;
  target.instance = make_instance_id();
  target.endpoint = "127.0.0.1:9";
  const Result<session::Link*> link = channel.connect(target);
  ASSERT_TRUE(link.ok()) << link.status().to_string();
  ASSERT_EQ(pending.size(), 1u);  // HELLO
  EXPECT_EQ(static_cast<UcxLink*>(*link)->control_bytes, sizeof(Head));
  const auto closing = [&] { return channel.nap_us() >= 0; };
  (void)channel.check_time(INT64_MAX);  // nothing answered: the link is closed
  (void)channel.poll();
  ASSERT_TRUE(closing()) << "the link is gone, and its HELLO is under way";
  EXPECT_EQ(static_cast<UcxLink*>(*link)->control_bytes, sizeof(Head));
  pending[0].cb.send(&request, UCS_ERR_CANCELED, pending[0].user_data);
  (void)channel.poll();
  EXPECT_FALSE(closing());
}

}  // namespace
}  // namespace millrace::ucx
