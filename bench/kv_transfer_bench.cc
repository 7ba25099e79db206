// KV pages from one server's pool to another's, through the relays of one host, against a plain memcpy in the same run.
//
//   kv_transfer_bench [rounds=9] [mib=256] [layers=28] [kv_heads=8] [head_dim=128]
//
// P and D are processes. P reads pages out of its pool, part by part (KvPages::read), and offers each through the relay
// (PartWriter); D gets it (PartReader) and writes it into its pool (KvPages::write, one thread); the messages between
// go over a socket pair, kWindowParts ahead. No scheduler is there, and no prompt is computed: it is what the road
// costs alone. `memcpy`: the same pages from pool to pool of one process, once. A ratio of 1 means that a transfer
// takes as long as that copy. Figures are medians.
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "relay/registry.h"
#include "runner/kv_pages.h"
#include "stages/transfer/limits.h"
#include "stages/transfer/part_relays.h"
#include "waiting.h"

namespace {

using namespace millrace;
using namespace millrace::transfer;

constexpr int32_t kPageSize = 16;

[[noreturn]] void die(const std::string& why) {
  fmt::print(stderr, "kv_transfer_bench: {}\n", why);
  std::exit(2);
}

struct Sizes {
  int rounds = 9;
  int64_t bytes = 256ll << 20;
  ModelConfig config;
  int32_t layers = 28;
};

KvPages make_pages(const Sizes& sizes, int32_t& count) {
  const LayerRange range{0, sizes.layers};
  const int64_t page = kv_page_bytes(sizes.config, range, kPageSize, DType::kF16);
  count = static_cast<int32_t>(std::max<int64_t>(1, sizes.bytes / page));
  Result<KvPages> pages = KvPages::make(
      sizes.config, range, {.page_size = kPageSize, .page_count = count, .dtype = DType::kF16, .poison = true});
  if (!pages.ok()) die(pages.status().to_string());
  return std::move(pages).value();
}

std::vector<PageId> run_of(int32_t first, int32_t count) {
  std::vector<PageId> pages;
  for (int32_t page = first; page < first + count; ++page) pages.push_back(PageId{page});
  return pages;
}

struct End {
  explicit End(const std::string& backend) {
    auto made = make_relay(backend, {});
    if (!made.ok()) die(made.status().to_string());
    relay = std::move(made).value();
    self = {.stage = "bench", .boot = host_id(), .pid = ::getpid(), .relays = {{backend, {relay->address()}}}};
    relays = {{backend, relay}};
  }
  std::shared_ptr<Relay> relay;
  wire::Peer self;
  loop::Relays relays;
};

// What P tells of a part: how long its descriptor is, and the descriptor. 0: the round is over.
struct Told {
  int32_t first = 0, pages = 0;
  int64_t descriptor = 0;
};

void send_all(int fd, const void* bytes, std::size_t size) {
  if (::send(fd, bytes, size, 0) != static_cast<ssize_t>(size)) die("the socket is gone");
}

void receive_parts(const Sizes& sizes, const std::string& backend, int fd) {
  int32_t count = 0;
  KvPages pages = make_pages(sizes, count);
  ThreadPool pool(1);
  End end(backend);
  const std::string address = end.relay->address();
  send_all(fd, address.data(), address.size());
  int64_t pid = ::getpid();
  send_all(fd, &pid, sizeof pid);
  PartReader reader(end.relays, [] {});
  std::vector<char> message(sizeof(Told) + 8192);
  while (true) {
    const ssize_t got = bench::receive(bench::Waiting::kPoll, fd, message.data(), message.size());
    if (got < static_cast<ssize_t>(sizeof(Told))) return;
    Told told;
    std::memcpy(&told, message.data(), sizeof told);
    wire::KvPart part{.id = {"bench"}, .pages = told.pages, .relay = backend};
    part.descriptor.bytes.assign(message.data() + sizeof told, static_cast<std::size_t>(got) - sizeof told);
    const auto ticket = reader.fetch(part, static_cast<std::size_t>(told.pages * pages.bytes_of_page()));
    if (!ticket.ok()) die(ticket.status().to_string());
    for (bool there = false; !there;) {
      for (TransferEnv::Fetched& fetched : reader.take_fetched()) {
        if (!fetched.status.ok()) die(fetched.status.to_string());
        there = true;
        const Status written = pages.write({run_of(told.first, told.pages), {std::move(fetched.bytes)}}, pool);
        if (!written.ok()) die(written.to_string());
      }
    }
    send_all(fd, &told.first, sizeof told.first);
  }
}

int64_t now_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double copy_s(const KvPages& from, const KvPages& to, int32_t count) {
  const int64_t begin = now_ns();
  for (std::size_t i = 0; i < from.layers().size(); ++i) {
    const kernels::KvLayer &source = from.layers()[i], &target = to.layers()[i];
    const auto bytes = static_cast<std::size_t>(count * source.page_stride_bytes);
    std::memcpy(target.k, source.k, bytes);
    std::memcpy(target.v, source.v, bytes);
  }
  return static_cast<double>(now_ns() - begin) / 1e9;
}

void run(const Sizes& sizes, const std::string& backend, int64_t part_bytes) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) != 0) die("socketpair");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(fds[0]);
    bench::settle(bench::Waiting::kPoll, 1);
    receive_parts(sizes, backend, fds[1]);
    std::_Exit(0);
  }
  ::close(fds[1]);
  bench::settle(bench::Waiting::kPoll, 0);
  int32_t count = 0;
  KvPages pages = make_pages(sizes, count), copy = make_pages(sizes, count);
  End end(backend);
  std::string address(4096, '\0');
  address.resize(static_cast<std::size_t>(::recv(fds[0], address.data(), address.size(), 0)));
  wire::Peer reader{.stage = "d", .boot = host_id(), .relays = {{backend, {address}}}};
  if (::recv(fds[0], &reader.pid, sizeof reader.pid, 0) != sizeof reader.pid) die("the reader is gone");
  PartWriter writer(end.self, end.relays, backend);
  const auto part_pages = static_cast<int32_t>(std::max<int64_t>(1, part_bytes / pages.bytes_of_page()));
  std::vector<double> copied, moved;
  auto buffer = std::make_shared<Buffer>(static_cast<std::size_t>(part_pages * pages.bytes_of_page()));
  for (int round = -2; round < sizes.rounds; ++round) {
    const double copy_time = copy_s(pages, copy, count);
    const int64_t begin = now_ns();
    int32_t acknowledged = 0, parts = 0;
    const auto hear = [&] {
      int32_t first = 0;
      if (bench::receive(bench::Waiting::kPoll, fds[0], &first, sizeof first) != sizeof first)
        die("the reader is gone");
      ++acknowledged;
      writer.collect();
    };
    for (int32_t first = 0; first < count; first += part_pages) {
      while (parts - acknowledged >= kWindowParts) hear();
      Told told{first, std::min(part_pages, count - first), 0};
      const auto bytes = static_cast<std::size_t>(told.pages * pages.bytes_of_page());
      if (buffer.use_count() > 1) buffer = std::make_shared<Buffer>(buffer->size_bytes());
      if (!pages.read(run_of(first, told.pages), {buffer->data(), bytes}).ok()) die("read");
      wire::KvPart part{.id = {"bench"}, .pages = told.pages};
      const Status offered = writer.offer(reader, SharedBytes(buffer, buffer->data(), bytes), part);
      if (!offered.ok() || part.relay.empty()) die("no relay: " + offered.to_string());
      std::string message(sizeof told, '\0');
      std::memcpy(message.data(), &told, sizeof told);
      message += part.descriptor.bytes;
      send_all(fds[0], message.data(), message.size());
      ++parts;
    }
    while (acknowledged < parts) hear();
    if (round < 0) continue;
    copied.push_back(copy_time);
    moved.push_back(static_cast<double>(now_ns() - begin) / 1e9);
  }
  const double mib = static_cast<double>(count * pages.bytes_of_page()) / (1 << 20);
  fmt::print("{:>6} | {:10.0f} | {:12.2f} | {:10.2f} | {:6.3f}\n", backend,
             static_cast<double>(part_pages * pages.bytes_of_page()) / 1024, mib / 1024 / median(copied),
             mib / 1024 / median(moved), median(copied) / median(moved));
  std::fflush(stdout);
  ::close(fds[0]);
  ::waitpid(child, nullptr, 0);
  bench::unsettle();
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  Sizes sizes;
  sizes.rounds = number(1, 9);
  sizes.bytes = int64_t{number(2, 256)} << 20;
  sizes.layers = number(3, 28);
  sizes.config.kv_heads = number(4, 8);
  sizes.config.head_dim = number(5, 128);
  fmt::print("{:>6} | {:>10} | {:>12} | {:>10} | {:>6}\n", "relay", "part KiB", "memcpy GiB/s", "GiB/s", "ratio");
  for (const char* backend : {"shm", "tcp"}) {
    for (const int64_t part : {kPartBytes, 4 * kPartBytes, 16 * kPartBytes}) run(sizes, backend, part);
  }
}
