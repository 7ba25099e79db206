// Puts, memory, links. What a link does on the device: nccl_transfer.cc.
#include "relay/nccl/nccl_channel.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "relay/tcp/limits.h"

namespace millrace::nccl {

using namespace session;  // NOLINT: this folder is a channel of the session

namespace {

constexpr char kEndOfEndpoint = '\n';  // in a tail: then a bit for each part, lowest first, that is in device memory
constexpr std::size_t kDeviceAlignment = 256;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

NcclChannel::NcclChannel(Core& core, const Api& api, int device)
    : core_(core),
      api_(api),
      device_(device),
      writer_user_(*this, core.writer),
      reader_user_(*this, core.reader),
      sockets_(core, writer_user_, reader_user_, false) {
  traits_.frames = {.frame_bytes = kStagingBytes, .packed_bytes = kStagingBytes, .alone_bytes = kDirectBytes - 1};
  traits_.range_bytes = 0;  // a frame: nothing travels that was not asked for
  traits_.ranges_in_flight = 2;
  // Calls of CUDA and NCCL may block, in the driver or while a library is loaded; deadlines must not wait for them.
  traits_.separate_deadlines = true;
}

RelayCapabilities NcclChannel::capabilities() const {
  RelayCapabilities capabilities = tcp::socket_capabilities("nccl", core_, sockets_.bound());
  capabilities.cuda_memory = true;
  return capabilities;
}

// Parts that the caller calls device memory must be on this relay's device.
Status NcclChannel::check_put(const PutRequest& request) const {
  for (const SharedBytes& part : request.parts) {
    if (part.device() != Device::kCuda || part.empty()) continue;
    PointerAttributes attributes{};
    RETURN_IF_ERROR(api_.cuda("cudaPointerGetAttributes", api_.cudaPointerGetAttributes(&attributes, part.data())));
    // Managed memory counts: NCCL takes it, and its pages come to the device with the first access.
    const bool in_device = attributes.type == kMemoryDevice || attributes.type == kMemoryManaged;
    if (!in_device || attributes.device != device_) {
      return invalid_argument("a part has memory of type {} on device {}; wanted device memory on {}", attributes.type,
                              attributes.device, device_);
    }
  }
  return ok_status();
}

// The parts stay where they are. Which of them are in device memory decides how frames are cut, on both sides.
Result<std::string> NcclChannel::store(Put& put) {
  const std::vector<SharedBytes>& parts = put.request->parts;
  std::vector<bool> device;
  std::string bits((parts.size() + 7) / 8, '\0');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    device.push_back(parts[i].device() == Device::kCuda);
    bits[i / 8] = static_cast<char>(bits[i / 8] | (device[i] << (i % 8)));
  }
  put.layout.set_alone(std::move(device));
  return sockets_.bound().to_string() + kEndOfEndpoint + bits;
}

Result<Target> NcclChannel::target_of(const Descriptor& descriptor) const {
  const std::size_t end = descriptor.tail.find(kEndOfEndpoint);
  const std::size_t bytes = end == std::string::npos ? 0 : descriptor.tail.size() - end - 1;
  // The tail is a peer's, and the loop below reads a bit of it for each part.
  if (bytes != (descriptor.parts + 7) / 8) {
    return invalid_argument("the descriptor has {} bytes of addresses of its {} parts; wanted {}", bytes,
                            descriptor.parts, (descriptor.parts + 7) / 8);
  }
  ASSIGN_OR_RETURN(Target target, sockets_.target_of(descriptor.instance, descriptor.tail.substr(0, end)));
  for (std::size_t i = 0; i < descriptor.parts; ++i) {
    target.device.push_back(((static_cast<uint8_t>(descriptor.tail[end + 1 + i / 8]) >> (i % 8)) & 1) != 0);
  }
  return target;
}

// A part arrives in the kind of memory that it was put in.
Result<std::optional<Landing>> NcclChannel::make_memory(const GetRequest& request, const Layout& layout) {
  const std::vector<bool>& on_device = layout.candidates();
  if (std::find(on_device.begin(), on_device.end(), true) == on_device.end()) return std::optional<Landing>();
  std::size_t device_bytes = 0, host_bytes = 0;
  std::vector<std::size_t> offsets;
  for (std::size_t i = 0; i < request.sizes.size(); ++i) {
    std::size_t& used = on_device[i] ? device_bytes : host_bytes;
    offsets.push_back(used);
    used += round_up(request.sizes[i], on_device[i] ? kDeviceAlignment : kBufferAlignment);
  }
  const auto host = std::make_shared<Buffer>(host_bytes);
  // Also where all device parts are empty: cudaMalloc() of 0 bytes gives null.
  ASSIGN_OR_RETURN(const std::shared_ptr<void> device,
                   make_device_memory(api_, std::max<std::size_t>(device_bytes, kDeviceAlignment)));
  Landing landing;
  for (std::size_t i = 0; i < request.sizes.size(); ++i) {
    const bool cuda = on_device[i];
    std::byte* to = (cuda ? static_cast<std::byte*>(device.get()) : host->data()) + offsets[i];
    landing.into.add(to, request.sizes[i]);
    landing.parts.emplace_back(cuda ? std::shared_ptr<const void>(device) : host, to, request.sizes[i],
                               cuda ? Device::kCuda : Device::kHost);
  }
  return std::optional<Landing>(std::move(landing));
}

// ---- links ----------------------------------------------------------------------------------------------------------

Status NcclChannel::JoinUser::on_frame(Link& link, const Header& header, std::span<const std::byte> payload) {
  if (header.type != FrameType::kJoin) return user_.on_frame(link, header, payload);
  Pair& pair = channel_.pairs_.at(&link);
  UniqueId id;
  // A second JOIN would replace a communicator on which the device may be at work.
  if (pair.writes || pair.communicator != nullptr || payload.size() != sizeof(id)) {
    return invalid_argument("a JOIN of {} bytes came; wanted one of {}, once, from the writer", payload.size(),
                            sizeof(id));
  }
  std::memcpy(id.internal, payload.data(), sizeof(id));
  return channel_.join(pair, id, 1);
}

// The connection is there; a REQUEST may be sent, and waits at the writer until both have joined.
void NcclChannel::JoinUser::on_ready(Link& link) {
  Pair& pair = channel_.pairs_[&link];
  pair.link = &link;
  pair.writes = this == &channel_.writer_user_;
  pair.due_ms = monotonic_ms() + kJoinMs;
  link.patience_ms = kJoinMs;  // the first use of a device takes its time
  user_.on_ready(link);
  if (!pair.writes) return;
  UniqueId id;
  const auto start = [&]() -> Status {
    RETURN_IF_ERROR(channel_.api_.cuda("cudaSetDevice", channel_.api_.cudaSetDevice(channel_.device_)));
    RETURN_IF_ERROR(channel_.api_.nccl("ncclGetUniqueId", channel_.api_.ncclGetUniqueId(&id)));
    // Before the writer joins: its join is over when the reader has joined as well, so the id must be on its way.
    RETURN_IF_ERROR(link.send(Header{.type = FrameType::kJoin, .length = sizeof(id.internal)},
                              std::as_bytes(std::span(id.internal))));
    return channel_.join(pair, id, 0);
  };
  // Not closed here: this is a callback of the link that would be destroyed. close_broken() does it at the end of the
  // turn.
  if (const Status joining = start(); !joining.ok()) channel_.broken_.emplace_back(&link, joining);
}

bool NcclChannel::JoinUser::busy(const Link& link) const {
  const auto pair = channel_.pairs_.find(&link);
  return user_.busy(link) || (pair != channel_.pairs_.end() && pair->second.step == Step::kJoining);
}

// The communicator first: then nothing reads or writes any bytes, and the session may end gets and puts.
void NcclChannel::JoinUser::on_lost(Link& link, const Status& why) {
  // The pointer dangles after this call, and a new link may get the same address.
  std::erase_if(channel_.broken_, [&](const auto& entry) { return entry.first == &link; });
  const auto at = channel_.pairs_.find(&link);
  if (at == channel_.pairs_.end()) return user_.on_lost(link, why);
  at->second.communicator.reset();
  user_.on_lost(link, why);
  // Each Fetch ends with one fetched(), see channel.h, also those that had not begun.
  while (!at->second.receives.empty()) {
    channel_.finish_receive(at->second, Status(StatusCode::kUnavailable, why.message()));
  }
  channel_.pairs_.erase(at);
}

int64_t NcclChannel::nap_us() const {
  constexpr int64_t kDeviceNapUs = 50;  // between two looks at the device
  for (const auto& [link, pair] : pairs_) {
    // The device gives no descriptor that epoll could wait for: completion is polled.
    if (pair.communicator != nullptr && pair.step != Step::kIdle) return kDeviceNapUs;
  }
  return -1;
}

void NcclChannel::close_broken() {
  while (!broken_.empty()) {
    const auto [link, why] = broken_.back();
    // Copied out first: close() calls on_lost(), which erases from broken_.
    broken_.pop_back();
    sockets_.close(*link, error(StatusCode::kUnavailable, "{}", why.message()));
  }
}

void NcclChannel::flush() {
  bool any = false;
  for (auto& [link, pair] : pairs_) {
    if (const Status status = progress(pair, any); !status.ok()) broken_.emplace_back(pair.link, status);
  }
  close_broken();
  sockets_.flush();
}

int64_t NcclChannel::check_time(int64_t now_ms) {
  free_device_memory();
  for (auto& [link, pair] : pairs_) {
    if (pair.step == Step::kIdle || now_ms < pair.due_ms) continue;
    broken_.emplace_back(pair.link, error(StatusCode::kUnavailable, "the device was not ready within {} ms",
                                          pair.step == Step::kJoining ? kJoinMs : kFrameMs));
  }
  close_broken();
  return sockets_.check_time(now_ms);
}

bool NcclChannel::shut_down() {
  for (auto& [link, pair] : pairs_) {
    pair.communicator.reset();
    while (!pair.receives.empty()) finish_receive(pair, Status(StatusCode::kCancelled, "the relay was closed"));
  }
  pairs_.clear();
  sockets_.shut_down();
  free_device_memory();
  return true;
}

}  // namespace millrace::nccl
