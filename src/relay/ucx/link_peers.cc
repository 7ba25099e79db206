// The set-up of a Link, its peers and messages. The thread's loop: link.cc.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/log.h"
#include "relay/op_table.h"
#include "relay/ucx/link.h"
#include "wire/limits.h"

namespace millrace::ucx {
namespace {

constexpr unsigned kMessageId = 1;  // of all our active messages
constexpr int kPingsBeforeSilent = 4;
constexpr std::size_t kKeyPadding = 4096;  // zeros behind an arena's key, whose lengths UCX takes as they are

}  // namespace

// One send or receive that UCX works on.
struct Link::Transfer {
  Link* link;
  Frame frame;
  std::string payload;
  std::function<void(bool)> done;
};

Link::Link(const UcxApi& api, const RelayOptions& options) : api_(api), options_(options) {}

Link::~Link() {
  if (listener_ != nullptr) api_.ucp_listener_destroy(listener_);
  if (worker_ != nullptr) api_.ucp_worker_destroy(worker_);  // it never ran
  if (context_ != nullptr) api_.ucp_cleanup(context_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

Result<std::unique_ptr<Link>> Link::make(const UcxApi& api, const Transports& transports, const RelayOptions& options) {
  std::unique_ptr<Link> link(new Link(api, options));
  RETURN_IF_ERROR(link->set_up(transports));
  return link;
}

Status Link::set_up(const Transports& transports) {
  transports_ = transports;
  ucp_config_t* config = nullptr;
  ucs_status_t status = api_.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return error(StatusCode::kUnavailable, "ucx: {}", api_.ucs_status_string(status));
  status = api_.ucp_config_modify(config, "TLS", transports.tls.c_str());
  if (status == UCS_OK) status = api_.ucp_config_modify(config, "NET_DEVICES", transports.devices.c_str());
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;  // not RMA: nobody is to write here
    params.mt_workers_shared = 1;                           // the pool is used on other threads
    status = api_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  }
  api_.ucp_config_release(config);
  if (status == UCS_OK) return make_worker();
  return error(StatusCode::kUnavailable, "ucx: transports {} on devices {}: {}", transports.tls, transports.devices,
               api_.ucs_status_string(status));
}

Status Link::make_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = api_.ucp_worker_create(context_, &params, &worker_);
  if (status == UCS_OK) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kMessageId;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = &Link::on_message;
    handler.arg = this;
    status = api_.ucp_worker_set_am_recv_handler(worker_, &handler);
  }
  if (status == UCS_OK) status = api_.ucp_worker_get_efd(worker_, &ucx_fd_);
  if (status != UCS_OK) return error(StatusCode::kUnavailable, "ucx: {}", api_.ucs_status_string(status));
  RETURN_IF_ERROR(listen());
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0) return error(StatusCode::kResourceExhausted, "ucx: no descriptor: {}", strerror(errno));
  return ok_status();
}

Status Link::listen() {
  ASSIGN_OR_RETURN(const sockaddr_storage address, parse_endpoint(transports_.ip));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address);
  params.sockaddr.addrlen = endpoint_bytes(address);
  params.conn_handler.cb = &Link::on_connect;
  params.conn_handler.arg = this;
  ucs_status_t status = api_.ucp_listener_create(worker_, &params, &listener_);
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (status == UCS_OK) status = api_.ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK) {
    return error(StatusCode::kUnavailable, "ucx: listening on {}: {}", transports_.ip, api_.ucs_status_string(status));
  }
  address_ = endpoint_text(attributes.sockaddr);
  return ok_status();
}

Result<Peer*> Link::add_peer(std::unique_ptr<Peer> peer, ucp_ep_params_t& params) {
  if (peers_.size() + closing_.size() >= 2 * wire::kMaxPeers) {
    return error(StatusCode::kResourceExhausted, "ucx: {} connections, the most that there may be",
                 2 * wire::kMaxPeers);
  }
  peer->link = this;
  peer->heard_ms = relay_now_ms();
  peer->due_ms = peer->heard_ms + options_.connect_timeout_ms;
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Link::on_broken;
  params.err_handler.arg = peer.get();
  const ucs_status_t status = api_.ucp_ep_create(worker_, &params, &peer->ep);
  if (status != UCS_OK) {
    return error(StatusCode::kUnavailable, "ucx: no connection: {}", api_.ucs_status_string(status));
  }
  next_ms_ = 0;  // it has a due time
  Peer* added = peer.get();
  peers_.emplace(added, std::move(peer));
  return added;
}

Result<Peer*> Link::connect(const InstanceId& id, const std::string& address) {
  if (const auto at = outgoing_.find(id.random); at != outgoing_.end()) {
    if (at->second->gone) return at->second->why;
    return at->second;
  }
  ASSIGN_OR_RETURN(const sockaddr_storage to, parse_endpoint(address));
  if (!transports_.network && !is_loopback(to)) {
    return error(StatusCode::kUnavailable, "ucx: {} is on another host; this relay uses devices '{}'", address,
                 transports_.devices);
  }
  auto fresh = std::make_unique<Peer>();
  fresh->id = id;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_FLAGS;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&to);
  params.sockaddr.addrlen = endpoint_bytes(to);
  ASSIGN_OR_RETURN(Peer * peer, add_peer(std::move(fresh), params));
  outgoing_.emplace(id.random, peer);
  send(*peer, {.type = FrameType::kHello, .boot = self_.boot, .pid = self_.pid});
  return peer;
}

void Link::on_connect(ucp_conn_request_h request, void* self) {
  Link& link = *static_cast<Link*>(self);
  auto peer = std::make_unique<Peer>();
  peer->incoming = true;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  const std::size_t before = link.peers_.size() + link.closing_.size();
  const Result<Peer*> added = link.add_peer(std::move(peer), params);
  if (added.ok()) return;
  LOG_WARNING("{}", added.status().to_string());
  // A connection that could not be made has used the request up.
  if (before >= 2 * wire::kMaxPeers) (void)link.api_.ucp_listener_reject(link.listener_, request);
}

void Link::send(Peer& peer, Frame frame, std::string_view payload) {
  auto copy = std::make_shared<std::string>(payload);
  const std::span bytes(reinterpret_cast<const std::byte*>(copy->data()), copy->size());
  send_bytes(peer, frame, bytes, [copy](bool) {});
}

void Link::send_bytes(Peer& peer, Frame frame, std::span<const std::byte> bytes, std::function<void(bool)> done) {
  if (peer.gone) {
    done(false);
    return;
  }
  auto* transfer = new Transfer{this, frame, {}, std::move(done)};
  transfer->frame.from = self_.random;
  transfer->frame.bytes = static_cast<uint32_t>(bytes.size());
  if (peer.incoming) transfer->frame.flags |= kFlagWriter;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Link::on_sent;
  params.user_data = transfer;
  if (frame.type == FrameType::kHello) {  // the other side sees over which connection it came
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_REPLY;
  }
  ++in_flight_;
  ucs_status_ptr_t request =
      api_.ucp_am_send_nbx(peer.ep, kMessageId, &transfer->frame, sizeof(Frame), bytes.data(), bytes.size(), &params);
  if (UCS_PTR_IS_PTR(request)) return;
  if (UCS_PTR_IS_ERR(request)) {
    fail(peer, error(StatusCode::kUnavailable, "ucx: sending to {}: {}", to_hex(peer.id),
                     api_.ucs_status_string(UCS_PTR_STATUS(request))));
  }
  finish(transfer, UCS_PTR_STATUS(request));
}

void Link::take(const Payload& payload, std::byte* to, std::function<void(bool)> done) {
  if (payload.rendezvous == nullptr) {
    if (payload.bytes > 0) std::memcpy(to, payload.data, payload.bytes);
    done(true);
    return;
  }
  *payload.taken = true;
  auto* transfer = new Transfer{this, {}, {}, std::move(done)};
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &Link::on_taken;
  params.user_data = transfer;
  ++in_flight_;
  ucs_status_ptr_t request = api_.ucp_am_recv_data_nbx(worker_, payload.rendezvous, to, payload.bytes, &params);
  if (!UCS_PTR_IS_PTR(request)) finish(transfer, UCS_PTR_STATUS(request));
}

void Link::finish(Transfer* transfer, ucs_status_t status) {
  --in_flight_;
  transfer->done(status == UCS_OK);
  delete transfer;
}

void Link::on_sent(void* request, ucs_status_t status, void* transfer) {
  auto* mine = static_cast<Transfer*>(transfer);
  Link& link = *mine->link;
  link.finish(mine, status);
  link.api_.ucp_request_free(request);
}

void Link::on_taken(void* request, ucs_status_t status, std::size_t, void* transfer) {
  on_sent(request, status, transfer);
}

ucs_status_t Link::on_message(void* self, const void* head, std::size_t head_bytes, void* data, std::size_t bytes,
                              const ucp_am_recv_param_t* param) {
  Link& link = *static_cast<Link*>(self);
  const std::optional<Frame> frame = decode_frame({static_cast<const std::byte*>(head), head_bytes}, bytes);
  if (!frame) {
    link.events_->on_bad_frame();
    return UCS_OK;
  }
  bool taken = false;
  Payload payload{static_cast<const std::byte*>(data), bytes, nullptr, &taken, nullptr};
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) payload.reply = param->reply_ep;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) payload.rendezvous = data;
  link.handle(*frame, payload);
  return taken ? UCS_INPROGRESS : UCS_OK;
}

void Link::handle(const Frame& frame, const Payload& payload) {
  if (frame.type == FrameType::kHello) {
    greeted(frame, payload);
    return;
  }
  const Names& names = (frame.flags & kFlagWriter) != 0 ? outgoing_ : incoming_;
  const auto at = names.find(frame.from);
  if (at == names.end() || at->second->gone) return;
  Peer& peer = *at->second;
  peer.heard_ms = std::max(peer.heard_ms, time_ms_);
  switch (frame.type) {
    case FrameType::kWelcome:
      peer.id.boot = frame.boot;
      peer.id.pid = frame.pid;
      if (!std::exchange(peer.open, true)) events_->on_open(peer);
      break;
    case FrameType::kPing:
      send(peer, {.type = FrameType::kPong});
      break;
    case FrameType::kPong:
      break;
    case FrameType::kBye:
      fail(peer, Status(StatusCode::kUnavailable, "the other relay was closed"));
      break;
    default:
      events_->on_frame(peer, frame, payload);
  }
}

void Link::greeted(const Frame& frame, const Payload& payload) {
  const auto at = std::find_if(peers_.begin(), peers_.end(), [&](const auto& entry) {
    return entry.second->ep == payload.reply && entry.second->incoming && !entry.second->open && !entry.second->gone;
  });
  if (payload.reply == nullptr || at == peers_.end()) {
    events_->on_bad_frame();
    return;
  }
  Peer& peer = *at->second;
  peer.id.random = frame.from;
  peer.id.boot = frame.boot;
  peer.id.pid = frame.pid;
  peer.open = true;
  peer.heard_ms = std::max(peer.heard_ms, time_ms_);
  if (const auto [known, fresh] = incoming_.emplace(frame.from, &peer); !fresh) {
    fail(*known->second, Status(StatusCode::kUnavailable, "the reader has connected anew"));
    known->second = &peer;
  }
  send(peer, {.type = FrameType::kWelcome, .boot = self_.boot, .pid = self_.pid});
}

void Link::remove(const Peer& peer) {
  Names& names = peer.incoming ? incoming_ : outgoing_;
  const auto at = names.find(peer.id.random);
  if (at != names.end() && at->second == &peer) names.erase(at);
}

void Link::on_broken(void* peer, ucp_ep_h, ucs_status_t status) {
  Peer& broken = *static_cast<Peer*>(peer);
  Link& link = *broken.link;
  link.fail(broken, error(StatusCode::kUnavailable, "ucx: the connection to {} broke: {}", to_hex(broken.id),
                          link.api_.ucs_status_string(status)));
}

void Link::fail(Peer& peer, Status why) {
  if (std::exchange(peer.gone, true)) return;
  peer.why = std::move(why);
  failed_.push_back(&peer);
}

void Link::bury() {
  while (!failed_.empty()) {
    std::vector<Peer*> failed;
    failed.swap(failed_);
    for (Peer* peer : failed) {
      events_->on_gone(*peer, peer->why);
      for (const auto& [id, arena] : peer->arenas) api_.ucp_rkey_destroy(arena.key);
      peer->arenas.clear();
      remove(*peer);
      const auto at = peers_.find(peer);
      closing_.push_back(std::move(at->second));
      peers_.erase(at);
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      params.flags = UCP_EP_CLOSE_FLAG_FORCE;
      peer->closing = api_.ucp_ep_close_nbx(peer->ep, &params);
    }
  }
}

bool Link::reap() {
  for (auto at = closing_.begin(); at != closing_.end();) {
    const ucs_status_ptr_t request = (*at)->closing;
    const bool waits = UCS_PTR_IS_PTR(request);
    if (waits && api_.ucp_request_check_status(request) == UCS_INPROGRESS) {
      ++at;
      continue;
    }
    if (waits) api_.ucp_request_free(request);
    at = closing_.erase(at);
  }
  return closing_.empty();
}

void Link::add_interest(Peer& peer) {
  if (peer.interest++ > 0) return;
  peer.heard_ms = relay_now_ms();
  peer.ping_ms = peer.heard_ms + options_.silent_ms / kPingsBeforeSilent;
  next_ms_ = std::min(next_ms_, peer.ping_ms);
}

int64_t Link::watch(int64_t now_ms) {
  int64_t next = std::numeric_limits<int64_t>::max();
  for (auto& [at, peer] : peers_) {
    if (peer->gone) continue;
    if (!peer->open) {
      if (now_ms >= peer->due_ms) {
        fail(*peer, error(StatusCode::kUnavailable, "ucx: {} did not answer within {} ms", to_hex(peer->id),
                          options_.connect_timeout_ms));
      }
      next = std::min(next, peer->due_ms);
      continue;
    }
    if (peer->interest == 0) continue;
    if (now_ms - peer->heard_ms >= options_.silent_ms) {
      fail(*peer,
           error(StatusCode::kUnavailable, "ucx: {} said nothing for {} ms", to_hex(peer->id), options_.silent_ms));
      continue;
    }
    if (now_ms >= peer->ping_ms) {
      send(*peer, {.type = FrameType::kPing});
      peer->ping_ms = now_ms + std::max(1, options_.silent_ms / kPingsBeforeSilent);
    }
    next = std::min({next, peer->ping_ms, peer->heard_ms + options_.silent_ms});
  }
  return next;
}

// The oldest that nobody copies from: ids only grow.
bool Link::make_room(Peer& peer) {
  if (peer.arenas.size() < kMaxArenaMaps) return true;
  const auto idle =
      std::find_if(peer.arenas.begin(), peer.arenas.end(), [](const auto& entry) { return entry.second.users == 0; });
  if (idle == peer.arenas.end()) return false;
  api_.ucp_rkey_destroy(idle->second.key);
  peer.arenas.erase(idle);
  return true;
}

const std::byte* Link::map(Peer& peer, uint64_t arena, std::string_view key, uint64_t address) {
  auto at = peer.arenas.find(arena);
  if (at == peer.arenas.end()) {
    if (!make_room(peer)) return nullptr;
    std::string padded(key);
    padded.resize(key.size() + kKeyPadding);
    ucp_rkey_h mapped = nullptr;
    if (api_.ucp_ep_rkey_unpack(peer.ep, padded.data(), &mapped) != UCS_OK) return nullptr;
    at = peer.arenas.emplace(arena, ArenaMap{.key = mapped}).first;
  }
  void* here = nullptr;
  if (api_.ucp_rkey_ptr(at->second.key, address, &here) != UCS_OK) return nullptr;
  ++at->second.users;
  return static_cast<const std::byte*>(here);
}

void Link::unmap(Peer& peer, uint64_t arena) {
  const auto at = peer.arenas.find(arena);
  CHECK(at != peer.arenas.end() && at->second.users > 0);
  --at->second.users;
}

}  // namespace millrace::ucx
