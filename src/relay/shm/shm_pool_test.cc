// The pool: extents against a plain map of pages, memory that stays bounded and is used again, refusals of the kernel.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <random>

#include "relay/shm/layout.h"
#include "relay/shm/pool.h"

namespace millrace::shm {
namespace {

constexpr std::size_t kMib = std::size_t{1} << 20;

TEST(Extents, NeverOverlapAndJoinAgain) {
  constexpr std::size_t kPages = 256;
  std::mt19937 random(7);
  Extents extents(kPages * kPageBytes);
  std::vector<bool> taken(kPages);
  std::vector<Extent> held;
  for (int step = 0; step < 20'000; ++step) {
    if (held.empty() || random() % 2) {
      const std::size_t bytes = random() % (20 * kPageBytes) + (random() % 2);
      const std::size_t pages = std::max<std::size_t>((bytes + kPageBytes - 1) / kPageBytes, 1);
      // The model: the lowest run of free pages that is long enough.
      std::size_t first = 0, run = 0;
      while (first + run < kPages && run < pages) {
        if (taken[first + run]) {
          first += run + 1;
          run = 0;
        } else {
          ++run;
        }
      }
      const std::optional<Extent> extent = extents.take(bytes);
      ASSERT_EQ(extent.has_value(), run == pages) << "step " << step << ", " << bytes << " bytes";
      if (!extent) continue;
      ASSERT_EQ(extent->offset, first * kPageBytes);
      ASSERT_EQ(extent->bytes, pages * kPageBytes);
      std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(first), pages, true);
      held.push_back(*extent);
    } else {
      const std::size_t which = random() % held.size();
      const Extent extent = held[which];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
      std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(extent.offset / kPageBytes), extent.bytes / kPageBytes,
                  false);
      extents.release(extent);
    }
  }
  for (const Extent& extent : held) extents.release(extent);
  ASSERT_EQ(extents.free().size(), 1u);
  EXPECT_EQ(extents.free().begin()->second, kPages * kPageBytes);
}

TEST(Pool, KeepsWhatWasWrittenAndItsMemoryBounded) {
  const std::size_t limit = 4 * kMib;
  auto pool = Pool::make(limit);
  ASSERT_TRUE(pool.ok()) << pool.status().to_string();
  std::mt19937 random(11);
  struct Held {
    Extent extent;
    int value;
  };
  std::vector<Held> held;
  std::size_t bytes = 0;
  for (int step = 0; step < 2'000; ++step) {
    const std::size_t wanted = random() % (random() % 8 == 0 ? 2 * kMib : 64 * 1024) + 1;
    if (bytes + wanted <= limit) {
      auto extent = (*pool)->take(wanted);
      ASSERT_TRUE(extent.ok()) << extent.status().to_string() << " with " << bytes << " of " << limit << " held";
      held.push_back({*extent, step & 0xFF});
      bytes += extent->bytes;
      std::memset((*pool)->at(*extent), step & 0xFF, extent->bytes);
    } else {
      const std::size_t which = random() % held.size();
      const std::byte* data = (*pool)->at(held[which].extent);
      for (std::size_t i = 0; i < held[which].extent.bytes; i += 509) {
        ASSERT_EQ(data[i], static_cast<std::byte>(held[which].value));
      }
      bytes -= held[which].extent.bytes;
      (*pool)->release(held[which].extent);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    }
    ASSERT_LE((*pool)->memory_bytes(), limit + kSparePoolBytes);
  }
}

TEST(Pool, UsesWarmMemoryAgain) {
  auto pool = Pool::make(8 * kMib);
  ASSERT_TRUE(pool.ok());
  for (int i = 0; i < 100; ++i) {
    auto extent = (*pool)->take(kMib);
    ASSERT_TRUE(extent.ok());
    EXPECT_EQ(extent->offset, 0u);
    (*pool)->release(*extent);
  }
  EXPECT_EQ((*pool)->memory_bytes(), kMib);
}

TEST(Pool, ReadersCannotWrite) {
  auto pool = Pool::make(kMib);
  ASSERT_TRUE(pool.ok());
  const Fd& fd = (*pool)->for_readers();
  EXPECT_EQ(::mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
  auto mapping = Mapping::make(fd, (*pool)->space_bytes(), false);
  ASSERT_TRUE(mapping.ok()) << mapping.status().to_string();
  EXPECT_NE(::mprotect(mapping->data(), kPageBytes, PROT_READ | PROT_WRITE), 0);
  EXPECT_NE(::ftruncate(fd.get(), 0), 0);
  EXPECT_TRUE(check_memfd(fd, (*pool)->space_bytes()).ok());
  EXPECT_FALSE(check_memfd(fd, (*pool)->space_bytes() + 1).ok());
}

TEST(Memory, WhatTheKernelRefusesIsAnAnswer) {
  auto memfd = make_memfd("millrace-test", kPageBytes);
  ASSERT_TRUE(memfd.ok());
  EXPECT_NE(::ftruncate(memfd->get(), 2 * kPageBytes), 0);
  EXPECT_NE(::ftruncate(memfd->get(), 0), 0);
  auto opened = read_only(*memfd);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(reserve_pages(*opened, 0, kPageBytes).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(reserve_pages(*memfd, 0, 2 * kPageBytes).ok()) << "past the end";
  EXPECT_EQ(Pool::make(kMaxPoolBytes + 1).status().code(), StatusCode::kInvalidArgument);
  // A limit of the process on file sizes stands for any other: it raises SIGXFSZ, unless ignored, and fails.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{kMib, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto pool = Pool::make(kMib);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(pool.status().code(), StatusCode::kResourceExhausted) << pool.status().to_string();
}

}  // namespace
}  // namespace millrace::shm
