// What arrives for gets: DATA as a byte stream, DATA and GRANT that the channel fetches, REFUSE, RELEASED.
#include <algorithm>
#include <array>
#include <utility>

#include "relay/session/core.h"
#include "relay/session/reader.h"

namespace millrace::session {

Status Reader::on_frame(Link& link, const Header& header, std::span<const std::byte> payload) {
  if (header.type == FrameType::kRefuse) return on_refuse(link, header, payload);
  if (header.type == FrameType::kGrant) return on_grant(link, header, payload);
  if (header.type == FrameType::kReleased) {
    on_released(link, header);
    return ok_status();
  }
  return invalid_argument("a writer sent a {}", frame_type_name(header.type));
}

Status Reader::on_refuse(Link& link, const Header& header, std::span<const std::byte> payload) {
  Get* get = find(header.ticket);
  // Tickets are numbers that a peer may guess: only the writer of the get may end it. Of a get that is over it is late,
  // no fault.
  if (get == nullptr || get->remote != routes_.at(&link).remote || get->task.put != header.op) return ok_status();
  const RelayOp op = get->task.op;
  const auto code = static_cast<StatusCode>(header.code);
  const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
  // First here, then in the table, whose end_get() posts get_ended() to this loop: that finds nothing left to do. The
  // table calls `done`, which may call get() on this thread.
  drop(header.ticket, StatusCode::kInvalidArgument);
  // What the writer did not want to give, and what ended while it was being read.
  if (code == StatusCode::kInvalidArgument) {
    core_.table.end_get(op, invalid_argument("the writer refuses: {}", text));
  } else {
    core_.table.end_get(
        op, error(StatusCode::kUnavailable, "the writer's put ended: {} ({})", status_code_name(code), text));
  }
  return ok_status();
}

Reader::Flight* Reader::flight_of(Route& route, const Header& header) {
  const auto flight = std::find_if(route.flights.begin(), route.flights.end(), [&](const Flight& f) {
    if (f.ticket != header.ticket) return false;
    if (header.type == FrameType::kGrant) {
      // A GRANT answers a REQUEST in whole; DATA may come in several frames, each of which must be missing.
      return f.range.offset == header.offset && f.range.end - f.range.offset == header.extra;
    }
    return f.gaps.fits(header.offset, header.length) ||
           (header.length == 0 && f.range.end == f.range.offset && header.offset == f.range.offset);
  });
  return flight == route.flights.end() ? nullptr : &*flight;
}

// ---- byte streams ---------------------------------------------------------------------------------------------------

Status Reader::data_begin(Link& link, const Header& header) {
  Route& route = routes_.at(&link);
  route.frame = header;
  route.have = 0;
  route.hasher->reset();
  Get* get = find(header.ticket);
  // The bytes of a get that is over are still in the stream: they are read and dropped, and the link goes on.
  route.discard = get == nullptr || get->remote != route.remote;
  if (route.discard) return ok_status();
  const Flight* flight = flight_of(route, header);
  if (flight == nullptr || get->task.put != header.op || get->task.generation != header.generation) {
    return broken(
        *get, internal_error("the writer sent bytes [{}, +{}) that were not asked for", header.offset, header.length));
  }
  if (core_.options.checksum && (header.flags & kFlagChecksum) == 0) {
    return broken(*get, internal_error("the writer sent bytes without a checksum"));
  }
  return ok_status();
}

// The writer breaks the rules: its get ends with that, and so does the link.
Status Reader::broken(Get& get, const Status& why) {
  const RelayOp op = get.task.op;
  drop(op.value, StatusCode::kInternal);
  core_.table.end_get(op, why);
  return why;
}

std::size_t Reader::data_space(Link& link, std::span<iovec> out) {
  Route& route = routes_.at(&link);
  const uint64_t left = route.frame.length - route.have;
  // Looked up at each call, as other links' events in between may have ended the get. The pin is for one call alone, so
  // that an end waits for one recvmsg() and not for the frame.
  const Get* get = route.discard ? nullptr : find(route.frame.ticket);
  if (get != nullptr && core_.table.pin(get->task.op)) {
    route.pinned = true;
    return get->landing.into.fill(route.frame.offset + route.have, left, out);
  }
  route.discard = true;
  out[0] = {scratch_.data(), static_cast<std::size_t>(std::min<uint64_t>(left, scratch_.size()))};
  return 1;
}

void Reader::data_received(Link& link, std::size_t bytes) {
  Route& route = routes_.at(&link);
  CHECK(bytes <= route.frame.length - route.have);
  if (route.pinned) {
    route.pinned = false;
    const Get* get = find(route.frame.ticket);
    const RelayOp op{route.frame.ticket};
    // Hashed where it lies, right after the kernel has written it, while it is in the cache.
    if ((route.frame.flags & kFlagChecksum) != 0 && get != nullptr) {
      std::array<iovec, 64> some{};
      for (uint64_t done = 0; done < bytes;) {
        const std::size_t count = get->landing.into.fill(route.frame.offset + route.have + done, bytes - done, some);
        for (std::size_t i = 0; i < count; ++i) {
          route.hasher->add({static_cast<const std::byte*>(some[i].iov_base), some[i].iov_len});
          done += some[i].iov_len;
        }
      }
    }
    core_.table.unpin(op);
  }
  route.have += bytes;
}

Status Reader::data_end(Link& link, uint64_t sum) {
  Route& route = routes_.at(&link);
  Get* get = route.discard ? nullptr : find(route.frame.ticket);
  if (get == nullptr) return ok_status();
  const Header& frame = route.frame;
  if ((frame.flags & kFlagChecksum) != 0 && route.hasher->digest() != sum) {
    return broken(*get,
                  internal_error("bytes [{}, +{}) of the put came with a wrong checksum", frame.offset, frame.length));
  }
  // Looked up again: requests that were sent since data_begin() may have moved the flights.
  Flight* flight = flight_of(route, frame);
  if (flight == nullptr) return ok_status();
  const bool empty = flight->range.offset == flight->range.end;
  if (!empty) flight->gaps.fill(frame.offset, frame.length);
  get->received += frame.length;
  if (!flight->gaps.none()) return ok_status();
  route.flights.erase(route.flights.begin() + (flight - route.flights.data()));
  check_complete(*get, empty);
  return ok_status();
}

// ---- what the channel fetches ---------------------------------------------------------------------------------------

Fetch Reader::start_fetch(Link& link, Get& get, uint64_t offset, uint64_t size) {
  ++get.fetching;
  Route& route = routes_.at(&link);
  ++route.expected;
  return {&link, route.id, get.task.op, offset, size, get.task.generation, &get.layout, &get.landing};
}

Result<std::optional<Fetch>> Reader::begin_fetch(Link& link, const Header& header) {
  RETURN_IF_ERROR(data_begin(link, header));
  Route& route = routes_.at(&link);
  if (route.discard) return std::optional<Fetch>();
  Flight* flight = flight_of(route, header);
  flight->answered = true;
  if (header.length > 0) flight->gaps.fill(header.offset, header.length);
  if (flight->gaps.none()) route.flights.erase(route.flights.begin() + (flight - route.flights.data()));
  return std::optional<Fetch>(start_fetch(link, *find(header.ticket), header.offset, header.length));
}

Status Reader::on_grant(Link& link, const Header& header, std::span<const std::byte> payload) {
  Route& route = routes_.at(&link);
  Get* get = find(header.ticket);
  Flight* flight = get == nullptr || get->remote != route.remote ? nullptr : flight_of(route, header);
  if (flight == nullptr || get->task.put != header.op || get->task.generation != header.generation) {
    // Of a get that is over; or doubled, where the first one is being fetched.
    if (get != nullptr && !core_.channel->traits().repeats) core_.table.count_bad_frame();
    return core_.channel->fetch(link, header, payload, {});
  }
  route.flights.erase(route.flights.begin() + (flight - route.flights.data()));
  const Fetch fetch = start_fetch(link, *get, header.offset, header.extra);
  const Status begun = core_.channel->fetch(link, header, payload, fetch);
  if (begun.ok()) return ok_status();
  if (begun.code() == StatusCode::kUnsupported) {
    --get->fetching;
    --route.expected;
    get->by_frames = true;
    // The writer granted what cannot be reached from here: the range is asked for once more, as DATA frames
    // (kFlagInline).
    get->again.push_back({header.offset, header.offset + header.extra});
    startable_ = true;
    return ok_status();
  }
  fetched(fetch, begun);
  return ok_status();
}

void Reader::fetched(const Fetch& fetch, const Status& status, bool unproved) {
  const auto at = gets_.find(fetch.get.value);
  CHECK(at != gets_.end());  // it stays as long as anything is fetched for it
  Get& get = *at->second;
  const auto route = routes_.find(fetch.link);
  if (route != routes_.end() && route->second.id == fetch.route) --route->second.expected;
  CHECK(get.fetching > 0);
  --get.fetching;
  // The get has ended meanwhile and waited for this: nothing is written for it any more, so the RELEASE may go.
  if (get.over) {
    if (get.fetching == 0) finish_drop(get, *get.over);
    return;
  }
  if (!status.ok()) {
    const RelayOp op = get.task.op;
    drop(op.value, status.code());
    core_.table.end_get(op, status);
    return;
  }
  get.unproved = get.unproved || unproved;
  get.received += fetch.size;
  check_complete(get, fetch.size == 0);
}

// ---- the last bytes -------------------------------------------------------------------------------------------------

void Reader::check_complete(Get& get, bool empty) {
  // A put without bytes is complete when its one empty frame has come, which shows that the put was open.
  if (get.received < get.task.total || (get.task.total == 0 && !empty)) {
    assign(*get.remote);
  } else if (get.unproved) {
    // Whether the put was open to the end decides whether these are its bytes.
    send_release(get, StatusCode::kOk, true);
    get.proving = true;
  } else {
    complete(get);
  }
}

void Reader::complete(Get& get) {
  const RelayOp op = get.task.op;
  std::vector<SharedBytes> parts = std::move(get.landing.parts);
  const bool allocated = !get.landing.direct;
  drop(op.value, StatusCode::kOk);
  // Behind drop(): `done` may call get() on this thread, and the memory of this get counts as free by then.
  core_.table.end_get(op, allocated ? core_.table.lend(std::move(parts)) : std::move(parts));
}

void Reader::on_released(Link& link, const Header& header) {
  const auto at = unanswered_.find(header.ticket);
  if (at == unanswered_.end() || at->second.link != &link) return;
  unanswered_.erase(at);
  --routes_.at(&link).expected;
  Get* get = find(header.ticket);
  if (get == nullptr || !get->proving) return;
  if (header.code == 0) return complete(*get);
  const RelayOp op = get->task.op;
  drop(op.value, StatusCode::kUnavailable);
  core_.table.end_get(op, Status(StatusCode::kUnavailable, "the put ended before its bytes were here"));
}

}  // namespace millrace::session
