// KV pages from one server's pool to another's, through the relays of one host, against a plain memcpy and against the
// relay alone in the same run.
//
//   kv_transfer_bench [rounds=9] [mib=256] [layers=28] [kv_heads=8] [head_dim=128]
//
// P and D are processes. P reads pages out of its pool, part by part (KvPages::read), and offers each through the relay
// (PartWriter); D gets it (PartReader), each part as soon as it knows of it, and writes it into its pool in their order
// (KvPages::write, one thread); the messages between go over a socket pair, kWindowParts ahead. No scheduler is there,
// and no prompt is computed: it is what the road costs alone. `memcpy`: the same pages from pool to pool of one
// process, once. `alone`: as many bytes in one put of the same relay, which D gets into a buffer, as relay_tcp_bench
// measures it. A ratio of 1 means that a transfer takes as long as that. Figures are medians; the three take turns.
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "relay/registry.h"
#include "runner/kv_pages.h"
#include "stages/transfer/limits.h"
#include "stages/transfer/part_buffers.h"
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

// What P sends of a part, before its descriptor. Without pages: so many bytes that are no pages.
struct PartHead {
  int32_t first = 0, pages = 0;
  int64_t bytes = 0;
};

void send_all(int fd, const void* bytes, std::size_t size) {
  if (::send(fd, bytes, size, 0) != static_cast<ssize_t>(size)) die("the socket is gone");
}

// D: fetches what P offers, and reports each part when it is written.
class Receiver {
 public:
  Receiver(const Sizes& sizes, const std::string& backend, int fd)
      : backend_(backend), fd_(fd), pages_(make_pages(sizes, count_)), end_(backend), reader_(end_.relays, [] {}) {
    plain_ = Buffer(static_cast<std::size_t>(count_ * pages_.bytes_of_page()));
    std::memset(plain_.data(), 1, plain_.size_bytes());
    const std::string address = end_.relay->address();
    send_all(fd_, address.data(), address.size());
    const int64_t pid = ::getpid();
    send_all(fd_, &pid, sizeof pid);
  }

  void run() {
    std::vector<char> message(sizeof(PartHead) + 8192);
    while (true) {
      const ssize_t got = ::recv(fd_, message.data(), message.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (!write_next()) ::sched_yield();
        continue;
      }
      if (got < static_cast<ssize_t>(sizeof(PartHead))) return;
      PartHead head;
      std::memcpy(&head, message.data(), sizeof head);
      std::string descriptor(message.data() + sizeof head, static_cast<std::size_t>(got) - sizeof head);
      head.pages == 0 ? get_plain(head, std::move(descriptor)) : fetch(head, std::move(descriptor));
    }
  }

 private:
  struct Open {
    PartHead head;
    uint64_t ticket = 0;
    SharedBytes bytes;
  };

  void fetch(const PartHead& head, std::string descriptor) {
    wire::KvPart part{.id = {"bench"}, .pages = head.pages, .relay = backend_, .descriptor = {std::move(descriptor)}};
    const auto ticket = reader_.fetch(part, static_cast<std::size_t>(head.pages * pages_.bytes_of_page()));
    if (!ticket.ok()) die(ticket.status().to_string());
    open_.push_back({head, *ticket, {}});
  }

  // False: nothing has come.
  bool write_next() {
    for (TransferEnv::Fetched& fetched : reader_.take_fetched()) {
      if (!fetched.status.ok()) die(fetched.status.to_string());
      for (Open& open : open_) {
        if (open.ticket == fetched.ticket) open.bytes = std::move(fetched.bytes);
      }
    }
    if (open_.empty() || open_.front().bytes.empty()) return false;
    Open next = std::move(open_.front());
    open_.pop_front();
    const Status written = pages_.write({run_of(next.head.first, next.head.pages), {std::move(next.bytes)}}, pool_);
    if (!written.ok()) die(written.to_string());
    send_all(fd_, &next.head.first, sizeof next.head.first);
    return true;
  }

  void get_plain(const PartHead& head, std::string descriptor) {
    const auto bytes = static_cast<std::size_t>(head.bytes);
    bench::Counter over(bench::Waiting::kPoll);
    GetRequest get{.descriptor = std::move(descriptor), .sizes = {bytes}, .destination = {{plain_.data(), bytes}}};
    get.done = [&](const Result<std::vector<SharedBytes>>& parts) {
      if (!parts.ok()) die(parts.status().to_string());
      over.add();
    };
    if (const auto begun = end_.relay->get(std::move(get)); !begun.ok()) die(begun.status().to_string());
    over.wait(1);
    send_all(fd_, &head.first, sizeof head.first);
  }

  const std::string backend_;
  const int fd_;
  int32_t count_ = 0;
  KvPages pages_;
  ThreadPool pool_{1};
  End end_;
  PartReader reader_;
  Buffer plain_;
  std::deque<Open> open_;
};

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

// P: offers its pages, and times them.
class Sender {
 public:
  Sender(const Sizes& sizes, const std::string& backend, int64_t part_bytes, int fd)
      : fd_(fd),
        pages_(make_pages(sizes, count_)),
        copy_(make_pages(sizes, count_)),
        part_pages_(static_cast<int32_t>(std::max<int64_t>(1, part_bytes / pages_.bytes_of_page()))),
        end_(backend),
        writer_(end_.self, end_.relays, backend) {
    Buffer plain(static_cast<std::size_t>(total_bytes()));
    std::memset(plain.data(), 2, plain.size_bytes());
    plain_ = SharedBytes(std::move(plain));
    std::string address(4096, '\0');
    address.resize(static_cast<std::size_t>(::recv(fd_, address.data(), address.size(), 0)));
    reader_ = {.stage = "d", .boot = host_id(), .relays = {{backend, {address}}}};
    if (::recv(fd_, &reader_.pid, sizeof reader_.pid, 0) != sizeof reader_.pid) die("the reader is gone");
  }

  int64_t total_bytes() const { return count_ * pages_.bytes_of_page(); }
  int64_t part_bytes() const { return part_pages_ * pages_.bytes_of_page(); }
  double copy() const { return copy_s(pages_, copy_, count_); }

  double move_pages() {
    const int64_t begin = now_ns();
    acknowledged_ = 0;
    int32_t parts = 0;
    for (int32_t first = 0; first < count_; first += part_pages_) {
      while (parts - acknowledged_ >= kWindowParts) acknowledge();
      const PartHead head{first, std::min(part_pages_, count_ - first)};
      const auto bytes = static_cast<std::size_t>(head.pages * pages_.bytes_of_page());
      const std::shared_ptr<Buffer> buffer = buffers_.take(bytes);
      if (!pages_.read(run_of(first, head.pages), {buffer->data(), bytes}).ok()) die("read");
      wire::KvPart part{.id = {"bench"}, .pages = head.pages};
      const Status offered = writer_.offer(reader_, SharedBytes(buffer, buffer->data(), bytes), part);
      if (!offered.ok() || part.relay.empty()) die("no relay: " + offered.to_string());
      send_head(head, part.descriptor.bytes);
      ++parts;
    }
    while (acknowledged_ < parts) acknowledge();
    return static_cast<double>(now_ns() - begin) / 1e9;
  }

  double move_plain() {
    const int64_t begin = now_ns();
    PutRequest put{.parts = {plain_}, .destination = reader_.relays[0].address.bytes, .done = [](const Status&) {}};
    const auto ticket = end_.relay->put(std::move(put));
    if (!ticket.ok()) die(ticket.status().to_string());
    send_head({.bytes = total_bytes()}, ticket->descriptor);
    acknowledge();
    return static_cast<double>(now_ns() - begin) / 1e9;
  }

 private:
  void acknowledge() {
    int32_t first = 0;
    if (bench::receive(bench::Waiting::kPoll, fd_, &first, sizeof first) != sizeof first) die("the reader is gone");
    ++acknowledged_;
    writer_.collect();
  }
  void send_head(const PartHead& head, const std::string& descriptor) {
    std::string message(sizeof head, '\0');
    std::memcpy(message.data(), &head, sizeof head);
    message += descriptor;
    send_all(fd_, message.data(), message.size());
  }

  const int fd_;
  int32_t count_ = 0;
  KvPages pages_, copy_;
  const int32_t part_pages_;
  End end_;
  PartWriter writer_;
  wire::Peer reader_;
  PartBuffers buffers_;
  SharedBytes plain_;
  int32_t acknowledged_ = 0;
};

void run(const Sizes& sizes, const std::string& backend, int64_t part_bytes) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) != 0) die("socketpair");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(fds[0]);
    bench::settle(bench::Waiting::kPoll, 1);
    Receiver(sizes, backend, fds[1]).run();
    std::_Exit(0);
  }
  ::close(fds[1]);
  bench::settle(bench::Waiting::kPoll, 0);
  Sender sender(sizes, backend, part_bytes, fds[0]);
  std::vector<double> copied, alone, moved;
  for (int round = -2; round < sizes.rounds; ++round) {
    const double times[] = {sender.copy(), sender.move_plain(), sender.move_pages()};
    if (round < 0) continue;
    copied.push_back(times[0]);
    alone.push_back(times[1]);
    moved.push_back(times[2]);
  }
  const double gib = static_cast<double>(sender.total_bytes()) / (1 << 30);
  fmt::print("{:>6} | {:10.0f} | {:12.2f} | {:11.2f} | {:6.2f} | {:9.3f} | {:8.3f}\n", backend,
             static_cast<double>(sender.part_bytes()) / 1024, gib / median(copied), gib / median(alone),
             gib / median(moved), median(copied) / median(moved), median(alone) / median(moved));
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
  fmt::print("{:>6} | {:>10} | {:>12} | {:>11} | {:>6} | {:>9} | {:>8}\n", "relay", "part KiB", "memcpy GiB/s",
             "alone GiB/s", "GiB/s", "of memcpy", "of alone");
  for (const char* backend : {"shm", "tcp"}) {
    for (const int64_t part : {kPartBytes, 4 * kPartBytes, 16 * kPartBytes}) run(sizes, backend, part);
  }
}
