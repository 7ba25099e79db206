#include <poll.h>

#include <boost/asio/post.hpp>

#include <algorithm>

#include "base/status.h"
#include "http/admission.h"
#include "http/session.h"

namespace millrace::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kCompactBytes = 16 << 10;       // consumed input is erased from this size on
constexpr size_t kKeepCapacityBytes = 64 << 10;  // larger buffers are freed between requests
constexpr int kMaxWritesInARow = 8;              // then other connections get their turn

}  // namespace

std::string format_endpoint(const asio::ip::tcp::endpoint& endpoint) {
  std::string address = endpoint.address().to_string();
  if (endpoint.address().is_v6()) address = "[" + address + "]";
  return address + ":" + std::to_string(endpoint.port());
}

std::size_t Session::read_ahead_limit() const {
  // A head must fit whole, or it could never be completed or refused.
  const Limits& limits = context_.options.limits;
  return std::max(limits.read_ahead_bytes, limits.head_bytes + 1);
}

void Session::consume(std::size_t count) {
  CHECK(count <= in_.size() - in_at_);
  in_at_ += count;
  if (in_at_ == in_.size()) {
    in_.clear();
    in_at_ = 0;
    if (in_.capacity() > kKeepCapacityBytes) std::string().swap(in_);
    // Not after each request: moving the rest each time would make pipelining quadratic.
  } else if (in_at_ >= kCompactBytes) {
    in_.erase(0, in_at_);
    in_at_ = 0;
  }
  arm_read();
}

// One wait at most. It is not armed while read-ahead is full, so that TCP's window closes and the client has to wait.
void Session::arm_read() {
  if (reading_ || client_left() || read_paused() || websocket_) return;
  reading_ = true;
  // Readiness, not a read: no buffer is held while nothing comes.
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](error_code ec) {
    self->reading_ = false;
    if (self->closed_ || self->websocket_) return;
    if (ec) {
      self->broken_ = true;
      self->notify();
      return;
    }
    self->on_readable();
  });
}

void Session::on_readable() {
  size_t space = read_ahead_limit() - (in_.size() - in_at_);
  error_code ec;
  // One read for each readiness: a fast sender must not hold the thread. arm_read() comes back when there is more.
  size_t count = socket_.read_some(asio::buffer(context_.scratch.data(), std::min(space, context_.scratch.size())), ec);
  if (ec == asio::error::would_block || ec == asio::error::try_again || ec == asio::error::interrupted) {
    arm_read();
    return;
  }
  if (ec == asio::error::eof) {
    eof_ = true;
  } else if (ec) {
    broken_ = true;
  } else {
    in_.append(context_.scratch.data(), count);
    arm_read();
  }
  notify();
}

// POLLRDHUP shows a FIN behind bytes that are not read; an ordinary read would find it only behind them.
void Session::poll_for_fin() {
  pollfd probe{socket_.native_handle(), POLLRDHUP, 0};
  if (closed_ || ::poll(&probe, 1, 0) <= 0) return;
  if ((probe.revents & (POLLERR | POLLHUP)) != 0) broken_ = true;
  if ((probe.revents & POLLRDHUP) != 0) eof_ = true;
}

// write_armed_ keeps pump() from writing meanwhile. The session lives as long as the wait, by `self`.
void Session::arm_write() {
  write_armed_ = true;
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](error_code ec) {
    self->write_armed_ = false;
    if (self->closed_) return;
    if (ec) self->broken_ = true;
    self->pump();
    self->notify();
  });
  notify();  // the coroutine now has a write deadline to keep
}

void Session::pump() {
  // Looked at before the socket is: one that takes nothing more stays armed, and its exchange would never be asked.
  if (exchange_ && exchange_->too_slow()) {
    too_slow_ = true;
    notify();
    return;
  }
  if (write_armed_) return;
  for (int writes = 0; !closed_ && !broken_; ++writes) {
    if (output_empty()) {
      if (!take()) return;
      last_progress_ = Clock::now();
    }
    if (writes == kMaxWritesInARow) {
      asio::post(socket_.get_executor(), [self = shared_from_this()] { self->pump(); });
      return;
    }
    // One writev(2) for head, frame, chunk and end: so no response is split over more packets than it needs.
    std::array<asio::const_buffer, 4> buffers;
    for (size_t i = segment_at_; i < segments_.size(); ++i)
      buffers[i] = asio::buffer(segments_[i].data(), segments_[i].size());
    error_code ec;
    size_t count = socket_.write_some(buffers, ec);
    if (ec == asio::error::would_block || ec == asio::error::try_again) return arm_write();
    if (ec && ec != asio::error::interrupted) {
      broken_ = true;
      notify();
      return;
    }
    last_progress_ = Clock::now();
    advance(count);
    // All of a response, or of a refusal, is in the kernel's buffer; the coroutine decides what comes next.
    if (output_empty() && (end_loaded_ || !exchange_)) {
      exchange_done_ = end_loaded_;
      notify();
      return;
    }
  }
}

void Session::advance(std::size_t count) {
  constexpr size_t kChunkSegment = 2;
  while (segment_at_ < segments_.size()) {
    std::string_view& segment = segments_[segment_at_];
    size_t take = std::min(count, segment.size());
    // Only these bytes are the exchange's: frames and heads were never counted as unsent.
    if (segment_at_ == kChunkSegment && chunk_counts_) exchange_->bytes_sent(take);
    segment.remove_prefix(take);
    count -= take;
    if (!segment.empty()) return;
    ++segment_at_;
  }
  CHECK(count == 0);  // the socket takes no more than it was given
}

void Session::free_chunk() {
  chunk_.clear();
  if (chunk_.capacity() > kKeepCapacityBytes) std::string().swap(chunk_);
}

// Fills the output from the exchange. False when there is nothing to write now.
bool Session::take() {
  if (!exchange_ || end_loaded_) return false;
  Exchange::Taken taken;
  // take() wants an empty string to swap with; what was in it has been written.
  free_chunk();
  exchange_->take(taken, chunk_);
  end_loaded_ = taken.ended;
  aborted_ = taken.aborted;
  segments_ = {"", "", "", ""};
  segment_at_ = 0;
  if (taken.head) {
    load_head(taken.response, taken.streaming);
    segments_[0] = head_text_;
    if (!taken.streaming) chunk_ = std::move(taken.response.body);
    counted_ = std::move(taken.response.counted);
    if (event_stream_) notify();  // it has a time for its first comment
  }
  // RFC 9110: no body behind HEAD, 204 and 304, whatever the handler has made.
  bool no_body = head_.method == "HEAD" || (!taken.streaming && is_bodyless(taken.response.status));
  chunk_counts_ = taken.streaming && !no_body;
  if (no_body) {
    // Dropped here, and sent as far as the flow control of the stream is concerned.
    if (taken.streaming) exchange_->bytes_sent(chunk_.size());
    chunk_.clear();
  }
  bool framed = chunked_out_ && !no_body;
  if (framed && !chunk_.empty()) {
    chunk_header(frame_, chunk_.size());
    segments_[1] = frame_;
  }
  segments_[2] = chunk_;
  if (framed) {
    // The last chunk of length 0 marks the regular end; an aborted stream ends without it.
    if (taken.ended && !taken.aborted) {
      segments_[3] = chunk_.empty() ? "0\r\n\r\n" : "\r\n0\r\n\r\n";
    } else if (!chunk_.empty()) {
      segments_[3] = "\r\n";
    }
  }
  // Steps over empty segments, so that output_empty() is right.
  advance(0);
  if (output_empty() && end_loaded_) {
    exchange_done_ = true;
    notify();
  }
  return !output_empty();
}

void Session::load_head(Response& response, bool streaming) {
  // The empty 500 of a handler that failed or forgot to answer.
  if (response.status == 500 && response.content_type.empty() && response.body.empty()) {
    response = render_error(context_.options, route_, {500, "internal error"}, request_id_);
  }
  chunked_out_ = streaming && head_.minor_version == 1;
  event_stream_ = streaming && response.content_type == kEventStream;
  // HTTP/1.0 has no chunks: the end of the connection is the end of the body.
  if (context_.draining || (streaming && !chunked_out_)) keep_alive_ = false;
  HeadContext context;
  context.minor_version = head_.minor_version;
  context.keep_alive = keep_alive_;
  context.framing = !streaming ? Framing::kLength : chunked_out_ ? Framing::kChunked : Framing::kUntilClose;
  context.server_name = context_.options.server_name;
  context.date = context_.date.get();
  context.request_id = request_id_;
  context.cors_origin = cors_origin_;
  head_text_.clear();
  append_response_head(head_text_, response, context);
  count_status(response.status);
}

void Session::queue_response(Response response) {
  chunk_counts_ = false;
  load_head(response, false);
  chunk_ = std::move(response.body);
  bool no_body = head_.method == "HEAD" || is_bodyless(response.status);
  segments_ = {head_text_, "", no_body ? std::string_view() : std::string_view(chunk_), ""};
  segment_at_ = 0;
  last_progress_ = Clock::now();
}

void Session::count_status(int status) {
  auto& counters = context_.counters;
  auto& counter = status < 400 ? counters.ok : status < 500 ? counters.client_errors : counters.server_errors;
  counter.fetch_add(1, std::memory_order_relaxed);
}

bool Session::write_stalled(TimePoint now) const { return now >= write_deadline(); }

Session::TimePoint Session::write_deadline() const {
  if (output_empty()) return TimePoint::max();
  return last_progress_ + context_.options.limits.write_stall_timeout;
}

// When a stream that stays silent is due for a comment.
Session::TimePoint Session::ping_time() const {
  const auto after = context_.options.limits.event_stream_ping;
  return event_stream_ && output_empty() && after.count() > 0 ? last_progress_ + after : TimePoint::max();
}

void Session::close(Next how) {
  if (closed_) return;
  closed_ = true;
  error_code ec;
  // SO_LINGER with 0 seconds: close(2) drops what is unsent and sends a RST (socket(7)).
  if (how == Next::kReset) socket_.set_option(asio::socket_base::linger(true, 0), ec);
  socket_.close(ec);
}

}  // namespace millrace::http
