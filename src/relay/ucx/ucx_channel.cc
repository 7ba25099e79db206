// Set-up, links, time and the end. Messages and bytes: ucx_data.cc.
#include "relay/ucx/ucx_channel.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "relay/tcp/address.h"
#include "relay/ucx/ucx_link.h"
#include "wire/limits.h"

namespace millrace::ucx {

using namespace session;  // NOLINT: this folder is a channel of the session

namespace {

// Twice: two relays that read from each other have a link in each direction.
constexpr std::size_t kMaxLinks = 2 * wire::kMaxPeers;
// A get is not limited by this relay's pool, which only holds what it puts. 1 TiB is far over any tensor and keeps sums
// of sizes from wrapping.
constexpr std::size_t kMaxGetBytes = std::size_t{1} << 40;

std::string address_of(const InstanceId& id) { return "ucx:" + to_hex(id); }

}  // namespace

UcxChannel::UcxChannel(Core& core, const UcxApi& api, Transports transports)
    : core_(core), api_(api), transports_(std::move(transports)), context_(std::make_shared<Context>(api)) {
  traits_.frames = {.frame_bytes = kSegmentBytes, .packed_bytes = kPackedBytes, .alone_bytes = kAloneBytes};
  traits_.max_get_bytes = kMaxGetBytes;
  traits_.farewell_ms = kGoodbyeMs;
}

UcxChannel::~UcxChannel() {
  if (listener_ != nullptr) api_.ucp_listener_destroy(listener_);
  if (worker_ != nullptr) api_.ucp_worker_destroy(worker_);  // it never ran
}

Status UcxChannel::open() {
  // Settings from the environment first, then the transports and devices of the options over them.
  ucp_config_t* config = nullptr;
  ucs_status_t status = api_.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return error(StatusCode::kUnavailable, "ucx: {}", api_.ucs_status_string(status));
  status = api_.ucp_config_modify(config, "TLS", transports_.tls.c_str());
  if (status == UCS_OK) status = api_.ucp_config_modify(config, "NET_DEVICES", transports_.devices.c_str());
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;  // not RMA: no peer is to write here
    params.mt_workers_shared = 1;                           // the pool is used on other threads
    status = api_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_->handle);
  }
  api_.ucp_config_release(config);
  if (status != UCS_OK) {
    // ucp_init() may have written to it; ~Context() would clean up what was never made.
    context_->handle = nullptr;
    return error(StatusCode::kUnavailable, "ucx: transports {} on devices {}: {}", transports_.tls, transports_.devices,
                 api_.ucs_status_string(status));
  }
  if (transports_.memory) {
    // Shared with each put's slot, since a put may be released when the channel is gone.
    pool_ = std::make_shared<Pool>(context_, core_.options.pool_bytes, static_cast<std::size_t>(core_.options.credits));
  }
  return make_worker();
}

Status UcxChannel::make_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // Not SINGLE: the worker is made by the caller's thread and used by the loop's, though never by two at a time.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = api_.ucp_worker_create(context_->handle, &params, &worker_);
  if (status == UCS_OK) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kMessageId;
    // The callback gets every eager message in one run, so a frame is never handled in fragments.
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = &UcxChannel::on_message;
    handler.arg = this;
    status = api_.ucp_worker_set_am_recv_handler(worker_, &handler);
  }
  int fd = -1;
  if (status == UCS_OK) status = api_.ucp_worker_get_efd(worker_, &fd);
  if (status != UCS_OK) return error(StatusCode::kUnavailable, "ucx: {}", api_.ucs_status_string(status));
  RETURN_IF_ERROR(listen());
  // The descriptor only ends the loop's sleep; may_sleep() arms the worker first, so an event in between is not missed.
  return core_.loop.add_wakeup(fd);
}

Status UcxChannel::listen() {
  ASSIGN_OR_RETURN(const tcp::SocketAddress address, tcp::parse_host_port(transports_.ip));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address.storage);
  params.sockaddr.addrlen = address.size;
  params.conn_handler.cb = &UcxChannel::on_connect;
  params.conn_handler.arg = this;
  ucs_status_t status = api_.ucp_listener_create(worker_, &params, &listener_);
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (status == UCS_OK) status = api_.ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK) {
    return error(StatusCode::kUnavailable, "ucx: listening on {}: {}", transports_.ip, api_.ucs_status_string(status));
  }
  // As UCX bound it: the port was chosen by the kernel.
  endpoint_ = tcp::SocketAddress{attributes.sockaddr, sizeof(attributes.sockaddr)}.to_string();
  return ok_status();
}

RelayCapabilities UcxChannel::capabilities() const {
  RelayCapabilities capabilities;
  capabilities.name = "ucx";
  capabilities.same_process = capabilities.same_host = true;
  capabilities.across_hosts = transports_.network;
  capabilities.max_put_bytes = core_.options.pool_bytes;
  return capabilities;
}

std::string UcxChannel::address() const { return address_of(core_.instance); }

// ---- links ----------------------------------------------------------------------------------------------------------

LinkUser& UcxChannel::user_of(const UcxLink& link) const {
  return link.incoming ? static_cast<LinkUser&>(core_.writer) : static_cast<LinkUser&>(core_.reader);
}

Result<Target> UcxChannel::target_of(const Descriptor& descriptor) const {
  Target target;
  target.instance = descriptor.instance;
  target.key = to_hex(descriptor.instance);
  target.endpoint = descriptor.tail;
  return target;
}

Result<UcxLink*> UcxChannel::add_link(std::unique_ptr<UcxLink> link, ucp_ep_params_t& params) {
  // Endpoints that are closing still cost UCX's memory and descriptors, so a peer that reconnects in a loop is bounded
  // too.
  if (links_.size() + closing_.size() >= kMaxLinks) {
    return error(StatusCode::kResourceExhausted, "ucx: {} connections, the most that there may be", kMaxLinks);
  }
  link->due_ms = monotonic_ms() + core_.options.connect_timeout_ms;
  // Without it UCX reports no death of a peer on this endpoint, and a forced close is not safe.
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxChannel::on_broken;
  params.err_handler.arg = link.get();
  const ucs_status_t status = api_.ucp_ep_create(worker_, &params, &link->ep);
  if (status != UCS_OK) {
    return error(StatusCode::kUnavailable, "ucx: no connection: {}", api_.ucs_status_string(status));
  }
  // The handler's argument stays valid until the endpoint is closed: the link moves to closing_ and outlives it there.
  UcxLink* added = link.get();
  links_.emplace(added, std::move(link));
  return added;
}

Result<Link*> UcxChannel::connect(const Target& target) {
  if (const auto at = outgoing_.find(target.instance.random); at != outgoing_.end()) {
    // The session asks for a link where it has none: this one has ended and is not closed yet.
    CHECK(at->second->gone);
    return at->second->why;
  }
  ASSIGN_OR_RETURN(const tcp::SocketAddress to, tcp::parse_host_port(target.endpoint));
  if (!transports_.network && !to.loopback()) {
    return error(StatusCode::kUnavailable, "ucx: {} is on another host; this relay uses devices '{}'", target.endpoint,
                 transports_.devices);
  }
  auto fresh = std::make_unique<UcxLink>(*this, false);
  fresh->id = target.instance;
  fresh->peer = {key_of(target.instance), address_of(target.instance)};
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&to.storage);
  params.sockaddr.addrlen = to.size;
  ASSIGN_OR_RETURN(UcxLink * link, add_link(std::move(fresh), params));
  outgoing_.emplace(target.instance.random, link);
  // At once, before the peer has accepted: UCX queues it. The boot hash lets the writer see whether memory can be
  // shared.
  (void)send(*link, Header{.type = FrameType::kHello, .extra = core_.instance.boot}, {});
  return static_cast<Link*>(link);
}

void UcxChannel::on_connect(ucp_conn_request_h request, void* self) {
  UcxChannel& channel = *static_cast<UcxChannel*>(self);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  const std::size_t before = channel.links_.size() + channel.closing_.size();
  const Result<UcxLink*> added = channel.add_link(std::make_unique<UcxLink>(channel, true), params);
  if (added.ok()) return;
  LOG_WARNING("{}", added.status().to_string());
  // A connection that could not be made has used the request up.
  if (before >= kMaxLinks) (void)channel.api_.ucp_listener_reject(channel.listener_, request);
}

// The reader introduces itself, over an endpoint that is known only by this message.
void UcxChannel::greeted(const Head& head, const Header& header, const Payload& payload) {
  // A connection request carries no name, so an accepted endpoint is nameless until HELLO. Only one HELLO counts for
  // each.
  const auto at = std::find_if(links_.begin(), links_.end(), [&](const auto& entry) {
    return entry.second->ep == payload.reply && entry.second->incoming && !entry.second->open && !entry.second->gone;
  });
  if (payload.reply == nullptr || at == links_.end()) return core_.table.count_bad_frame();
  UcxLink& link = *at->second;
  link.id.random = head.from;
  link.id.boot = header.extra;
  link.peer = {key_of(link.id), address_of(link.id)};
  link.open = true;
  if (const auto [known, fresh] = incoming_.emplace(head.from, &link); !fresh) {
    // The old endpoint may not have broken yet. Its end takes effect later, and close_failed() then finds the new link
    // under this name and leaves it there.
    fail(*known->second, Status(StatusCode::kUnavailable, "the reader has connected anew"));
    known->second = &link;
  }
  core_.writer.on_ready(link);
  (void)send(link, Header{.type = FrameType::kWelcome, .extra = core_.instance.boot}, {});
}

void UcxChannel::on_broken(void* link, ucp_ep_h, ucs_status_t status) {
  UcxLink& broken = *static_cast<UcxLink*>(link);
  UcxChannel& channel = broken.channel;
  channel.fail(broken, error(StatusCode::kUnavailable, "ucx: the connection to {} broke: {}", to_hex(broken.id),
                             channel.api_.ucs_status_string(status)));
}

void UcxChannel::fail(UcxLink& link, Status why) {
  // Called from inside UCX's callbacks and the session's, where the endpoint must not be closed nor the link destroyed.
  // The first reason counts: a BYE is followed by a broken connection.
  if (std::exchange(link.gone, true)) return;
  link.why = std::move(why);
  failed_.push_back(&link);
}

void UcxChannel::close_failed() {
  // on_lost() may fail further links, by what it sends.
  while (!failed_.empty()) {
    for (UcxLink* link : std::exchange(failed_, {})) {
      Names& names = link->incoming ? incoming_ : outgoing_;
      if (const auto at = names.find(link->id.random); at != names.end() && at->second == link) names.erase(at);
      std::erase(pushing_, link);
      // Before fetched() below: the gets are over by then, and the ends of their copies only release their records.
      user_of(*link).on_lost(*link, link->why);
      // Taken out before fetched(), which may begin or abandon other copies.
      std::vector<Copy> over;
      for (const Copy& copy : copies_) {
        if (copy.link == link) over.push_back(copy);
      }
      std::erase_if(copies_, [&](const Copy& copy) { return copy.link == link; });
      for (const Copy& copy : over) core_.reader.fetched(copy.fetch, link->why);
      // Keys belong to the endpoint, so they go before it; no copy reads through them any more.
      for (const auto& [id, arena] : link->arenas) api_.ucp_rkey_destroy(arena.key);
      link->arenas.clear();
      const auto at = links_.find(link);
      closing_.push_back(std::move(at->second));
      links_.erase(at);
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      // By force: a close that flushes would wait for a peer that may be dead. What UCX still sends or receives for it
      // ends with UCS_ERR_CANCELED. Both peers need UCP_ERR_HANDLING_MODE_PEER for that.
      params.flags = UCP_EP_CLOSE_FLAG_FORCE;
      link->closing = api_.ucp_ep_close_nbx(link->ep, &params);
    }
  }
}

bool UcxChannel::reap() {
  for (auto at = closing_.begin(); at != closing_.end();) {
    const ucs_status_ptr_t request = (*at)->closing;
    // UCX returns null where the close is complete at once, and an error status where there is nothing to wait for.
    const bool waits = UCS_PTR_IS_PTR(request);
    // Sends may end later than the close of their endpoint, and their ends name the link.
    if ((*at)->transfers > 0 || (waits && api_.ucp_request_check_status(request) == UCS_INPROGRESS)) {
      ++at;
      continue;
    }
    if (waits) api_.ucp_request_free(request);
    at = closing_.erase(at);
  }
  return closing_.empty();
}

// ---- time and the end -----------------------------------------------------------------------------------------------

int64_t UcxChannel::check_time(int64_t now_ms) {
  int64_t due_ms = INT64_MAX;
  const int silent_ms = core_.options.silent_ms;
  for (auto& [at, link] : links_) {
    if (link->gone) continue;
    // A link that has not answered is not pinged; its time is connect_timeout_ms. An accepted one has as long for its
    // HELLO.
    if (!link->open) {
      if (now_ms >= link->due_ms) {
        fail(*link, error(StatusCode::kUnavailable, "ucx: {} did not answer within {} ms", to_hex(link->id),
                          core_.options.connect_timeout_ms));
      }
      due_ms = std::min(due_ms, link->due_ms);
    } else if (!user_of(*link).busy(*link)) {
      continue;
    } else if (link->liveness.dead(now_ms, silent_ms)) {
      link->silent = true;
      fail(*link, error(StatusCode::kUnavailable, "ucx: {} was silent for {} ms", to_hex(link->id), silent_ms));
    } else if (link->liveness.ping_due(now_ms, Liveness::ping_every_ms(silent_ms), due_ms)) {
      (void)send(*link, Header{.type = FrameType::kPing}, {});
    }
  }
  close_failed();
  return due_ms;
}

void UcxChannel::compensate_pause(int64_t now_ms) {
  // Also for links that nothing is expected of: cheaper than asking, and begin_use() resets them anyway.
  for (auto& [at, link] : links_) link->liveness.seen_ms = now_ms;
}

// First BYE, then all endpoints are closed by force, which ends what UCX still does with callers' memory. Endpoints
// that do not end are leaked with everything that UCX may still touch.
bool UcxChannel::shut_down() {
  // First the listener, so that no link joins while the others are being closed.
  api_.ucp_listener_destroy(listener_);
  listener_ = nullptr;
  for (auto& [at, link] : links_) {
    if (link->ready()) (void)send(*link, Header{.type = FrameType::kBye}, {});
  }
  int64_t until_ms = monotonic_ms() + kGoodbyeMs;
  // RELEASE and BYE leave here. A peer that takes nothing is not waited for any longer.
  while (in_flight_ > 0 && monotonic_ms() < until_ms) (void)api_.ucp_worker_progress(worker_);
  for (auto& [at, link] : links_) fail(*link, Status(StatusCode::kCancelled, "the relay was closed"));
  close_failed();
  // in_flight_ is counted as well as the endpoints: a receive that is under way still writes to a get's memory.
  until_ms = monotonic_ms() + kTeardownMs;
  while ((!reap() || in_flight_ > 0) && monotonic_ms() < until_ms) {
    if (api_.ucp_worker_progress(worker_) == 0) usleep(100);
  }
  const bool clean = closing_.empty() && in_flight_ == 0;
  if (clean) {
    api_.ucp_worker_destroy(worker_);
  } else {
    LOG_WARNING("ucx: {} connections with {} requests did not end within {} ms; they are abandoned", closing_.size(),
                in_flight_, kTeardownMs);
    // UCX may still call on_broken() with a link as its argument, and callbacks of requests with a transfer.
    for (auto& link : closing_) (void)link.release();
    closing_.clear();
    new std::shared_ptr<Context>(context_);  // the worker stays in it
  }
  worker_ = nullptr;
  return clean;
}

}  // namespace millrace::ucx
