#include "relay/local/local_relay.h"

#include <cstring>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/rng.h"
#include "relay/descriptor.h"
#include "relay/op_table.h"
#include "relay/ticker.h"

namespace millrace {
namespace {

constexpr char kName[] = "local";
constexpr char kScheme[] = "local:";

// What is put and may be got. Held by the writer's map and by its readers.
// Two counts, as a put ends by its readers' releases while gets are limited by claims. A get that was claimed and not
// released yet is in `unreleased` alone.
struct Offer {
  std::vector<SharedBytes> parts;
  std::vector<std::size_t> sizes;
  uint64_t generation = 0;
  std::string destination;
  int unclaimed = 0;   // gets that may still come
  int unreleased = 0;  // gets, made or to come, that are not released
  bool ended = false;
};

// One writer, shared with the registry and with its readers: it may be gone before they are.
struct Writer {
  std::mutex mutex;
  std::map<uint64_t, Offer> offers;  // by op; also ended ones that are still read
  std::unique_ptr<OpTable> table;
};

class Registry {
 public:
  void add(const std::string& id, const std::shared_ptr<Writer>& writer) {
    std::lock_guard lock(mutex_);
    writers_[id] = writer;
  }
  void remove(const std::string& id) {
    std::lock_guard lock(mutex_);
    writers_.erase(id);
  }
  std::shared_ptr<Writer> find(const std::string& id) {
    std::lock_guard lock(mutex_);
    // Weak: a writer's record is kept by its relay and its readers; the registry only finds it.
    const auto at = writers_.find(id);
    return at == writers_.end() ? nullptr : at->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Writer>> writers_;
};

Registry& registry() {
  static Registry* const instance = new Registry;  // readers may release while the program ends
  return *instance;
}

// A reader of `op` releases it. The last of them ends the put.
void release(const std::shared_ptr<Writer>& writer, RelayOp op) {
  std::vector<SharedBytes> parts;  // destroyed without the lock
  bool last = false, ended = false;
  {
    std::lock_guard lock(writer->mutex);
    const auto at = writer->offers.find(op.value);
    if (at == writer->offers.end()) return;
    Offer& offer = at->second;
    CHECK(offer.unreleased > 0);
    --offer.unreleased;
    ended = offer.ended;
    // An ended put gets no further reader.
    last = offer.unreleased - (ended ? offer.unclaimed : 0) == 0;
    // An open put keeps its offer here: end_put() below leads to ended(), which erases it.
    if (last && ended) {
      parts = std::move(offer.parts);
      writer->offers.erase(at);
    }
  }
  // The table is called without the writer's lock: it calls back into ended(), which takes it.
  if (!last) return;
  if (ended) {
    writer->table->release(op);
  } else {
    (void)writer->table->end_put(op, ok_status());
  }
}

class LocalRelay final : public Relay {
 public:
  explicit LocalRelay(const RelayOptions& options)
      : options_(options), id_(make_instance_id()), writer_(std::make_shared<Writer>()) {
    // The table belongs to the writer's record, which outlives this relay while a reader holds bytes.
    writer_->table =
        std::make_unique<OpTable>(options, [writer = std::weak_ptr(writer_)](RelayOp op, bool is_put, const Status&) {
          const std::shared_ptr<Writer> alive = writer.lock();
          return !is_put || !alive || revoke(*alive, op);
        });
    registry().add(to_hex(id_), writer_);
    ticker_ = std::make_unique<Ticker>([this] { return writer_->table->expire(monotonic_ms()); });
  }
  ~LocalRelay() override { close(); }

  RelayCapabilities capabilities() const override {
    return {.name = kName,
            .same_process = true,
            .by_reference = true,
            .mapped_receive = true,
            .cuda_memory = true,
            .max_put_bytes = options_.pool_bytes};
  }
  std::string address() const override { return kScheme + to_hex(id_); }

  Result<PutTicket> put(PutRequest request) override {
    RETURN_IF_ERROR(check_put(request, options_.pool_bytes));
    const std::size_t bytes = total_bytes(request);
    Offer offer;
    // References to the same bytes. The table keeps the request's until the end, the offer's may live on with readers.
    offer.parts = request.parts;
    offer.sizes = part_sizes(request.parts);
    offer.destination = request.destination;
    offer.unclaimed = offer.unreleased = request.readers;
    Descriptor descriptor;
    descriptor.backend = kName;
    descriptor.instance = id_;
    describe_sizes(offer.sizes, descriptor);
    ASSIGN_OR_RETURN(const RelayOp op, writer_->table->open_put(std::move(request), bytes, monotonic_ms()));
    descriptor.op = op;
    descriptor.generation = offer.generation = generation_of(op);
    {
      std::lock_guard lock(writer_->mutex);
      writer_->offers.emplace(op.value, std::move(offer));
    }
    writer_->table->unpin(op);
    ticker_->wake();
    return PutTicket{op, encode_descriptor(descriptor)};
  }

  Result<RelayOp> get(GetRequest request) override {
    RETURN_IF_ERROR(check_get(request));
    ASSIGN_OR_RETURN(const Descriptor descriptor, descriptor_of(request, kName));
    // A get here is over within the call. It is an op all the same, for cancel(), the limits and one kind of end.
    ASSIGN_OR_RETURN(const RelayOp op, writer_->table->open_get(std::move(request), monotonic_ms()));
    // Pinned, so the request is there. If an end came first, the claimed parts are dropped, which counts as their
    // release.
    (void)writer_->table->end_get(op, claim(descriptor, *writer_->table->get(op)));
    writer_->table->unpin(op);
    return op;
  }

  void cancel(RelayOp op) override { writer_->table->cancel(op); }
  void cleanup(ReqId request) override { writer_->table->cleanup(request); }
  RelayBooks books() const override { return writer_->table->books(); }
  void close() override {
    // First no new claims, then the ends. The record lives on with the readers that hold its parts.
    registry().remove(to_hex(id_));
    writer_->table->close();
    if (ticker_) ticker_->stop();
  }

 private:
  // Not to be guessed from the op.
  uint64_t generation_of(RelayOp op) const {
    uint64_t seed = 0;
    std::memcpy(&seed, id_.random.data(), sizeof(seed));
    const PhiloxBlock block = philox(seed, op.value);
    return (uint64_t{block[0]} << 32) | block[1];
  }

  // The end of a put: no new reader may get it. True where no reader holds it now.
  static bool revoke(Writer& writer, RelayOp op) {
    std::vector<SharedBytes> parts;
    // Declared after `parts`, so it is released first: a part's destructor may be the owner's code.
    std::lock_guard lock(writer.mutex);
    const auto at = writer.offers.find(op.value);
    if (at == writer.offers.end()) return true;
    at->second.ended = true;
    // Some get was claimed and not released: the last release gives bytes and credit back.
    if (at->second.unreleased > at->second.unclaimed) return false;
    parts = std::move(at->second.parts);
    writer.offers.erase(at);
    return true;
  }

  Result<std::vector<SharedBytes>> claim(const Descriptor& descriptor, const GetRequest& request) {
    const std::shared_ptr<Writer> writer = registry().find(to_hex(descriptor.instance));
    if (!writer) {
      return Status(StatusCode::kUnavailable, "the descriptor's relay is not in this process, or was closed");
    }
    const RelayOp put = descriptor.op;
    std::vector<SharedBytes> parts;
    {
      std::lock_guard lock(writer->mutex);
      const auto at = writer->offers.find(put.value);
      if (at == writer->offers.end() || at->second.ended || at->second.generation != descriptor.generation) {
        return invalid_argument("the descriptor's put is over");
      }
      Offer& offer = at->second;
      if (!offer.destination.empty() && offer.destination != address()) {
        return invalid_argument("the put is for '{}'; this is '{}'", offer.destination, address());
      }
      if (offer.sizes != request.sizes) return invalid_argument("the sizes of the parts are not those of the put");
      if (offer.unclaimed == 0) return invalid_argument("all readers of the put have come already");
      // Only after all checks: a refused get does not use up a reader's turn.
      --offer.unclaimed;
      parts = offer.parts;
    }
    if (request.destination.empty()) {
      // Lent by this relay's table, as it is this relay's books that count received parts; released at the writer's.
      return writer_->table->lend(std::move(parts), [writer, put] { release(writer, put); });
    }
    // Without the writer's lock: the claim keeps the parts, and a copy may be large.
    Result<std::vector<SharedBytes>> copies = copy_out(parts, request);
    parts.clear();
    release(writer, put);
    return copies;
  }

  static Result<std::vector<SharedBytes>> copy_out(const std::vector<SharedBytes>& parts, const GetRequest& request) {
    CHECK(request.destination.size() == parts.size());
    std::vector<SharedBytes> copies;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      // The get ends with an error, but it was claimed, so it counts as one of the put's readers.
      if (parts[i].device() != Device::kHost) {
        return Status(StatusCode::kUnsupported, "a get into host memory of a part that is in device memory");
      }
      const std::span<std::byte> to = request.destination[i];
      if (!to.empty()) std::memcpy(to.data(), parts[i].data(), to.size());
      copies.emplace_back(nullptr, to.data(), to.size());
    }
    return copies;
  }

  const RelayOptions options_;
  const InstanceId id_;
  const std::shared_ptr<Writer> writer_;
  std::unique_ptr<Ticker> ticker_;
};

}  // namespace

Result<std::unique_ptr<Relay>> make_local_relay(const RelayOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  return std::unique_ptr<Relay>(std::make_unique<LocalRelay>(options));
}

}  // namespace millrace
