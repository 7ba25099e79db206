// What a peer that does not behave may cost the UCX relay: control frames that it does not read, and memory that it
// names and that is not there.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "relay/ucx/ucx_channel.h"
#include "relay/ucx/ucx_link.h"
#include "relay/ucx/ucx_relay.h"

namespace millrace::ucx {
namespace {

TEST(UcxMapped, WhatIsNotMappedIsNotCovered) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::size_t kPages = 5000;  // more than one question to the kernel
  void* memory = ::mmap(nullptr, (kPages + 1) * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto* begin = static_cast<const std::byte*>(memory);
  ASSERT_EQ(::munmap(static_cast<std::byte*>(memory) + kPages * page, page), 0);
  Mapped mapped;
  EXPECT_FALSE(mapped.covers(begin + page, kPages * page));
  EXPECT_TRUE(mapped.covers(begin + page + 64, page));
  EXPECT_TRUE(mapped.covers(begin, kPages * page));
  EXPECT_FALSE(mapped.covers(begin, kPages * page + 1)) << "a part of it is";
  EXPECT_FALSE(mapped.covers(begin + 64, SIZE_MAX));
  EXPECT_FALSE(mapped.covers(reinterpret_cast<const std::byte*>(UINT64_MAX - 8), 64)) << "it goes round";
  EXPECT_FALSE(mapped.covers(reinterpret_cast<const std::byte*>(64), 64));
  ::munmap(memory, kPages * page);
}

// Sends that UCX has accepted and not ended.
std::vector<ucp_request_param_t> g_pending;
int g_request = 0;

TEST(UcxLimits, ThePeerThatReadsNoAnswersLosesItsLink) {
  const Result<const UcxApi*> loaded = load_ucx(kUcxLibrary);
  if (!loaded.ok()) GTEST_SKIP() << loaded.status().to_string();
  static UcxApi api;
  api = **loaded;
  api.ucp_am_send_nbx = [](ucp_ep_h, unsigned, const void*, size_t, const void*, size_t,
                           const ucp_request_param_t* params) -> ucs_status_ptr_t {
    g_pending.push_back(*params);
    return &g_request;
  };
  api.ucp_request_free = [](void*) {};
  session::Core core{RelayOptions{}};
  ASSERT_TRUE(core.loop.open().ok());
  UcxChannel channel(core, api, choose_transports("ucx:tcp,self@lo", nullptr, nullptr).value());
  const Status opened = channel.open();
  if (!opened.ok()) GTEST_SKIP() << opened.to_string();
  UcxLink link(channel, true);
  const std::vector<std::byte> reason(session::kMaxReasonBytes);
  Status sent;
  while (g_pending.size() < kMaxControlBytes) {  // each has more than a byte
    sent = link.send(session::Header{.type = session::FrameType::kRefuse}, reason);
    if (!sent.ok()) break;
  }
  EXPECT_EQ(sent.code(), StatusCode::kUnavailable);
  EXPECT_EQ(g_pending.size(), kMaxControlBytes / (sizeof(Head) + reason.size()));
  EXPECT_TRUE(link.gone);
  for (const ucp_request_param_t& one : g_pending) one.cb.send(&g_request, UCS_OK, one.user_data);
}

}  // namespace
}  // namespace millrace::ucx
