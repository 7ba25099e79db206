// OutgoingFrame: one DATA frame on its way out, header and bytes, sent from where the bytes lie.
//
// The checksum stands behind the bytes, so that they are hashed right after the kernel has read them, while they are in
// the core's cache, kHashedBytes at a time: at about a third of the cost of fetching them first.
//
// While it is open it holds the put, so that the bytes stay. A put that ends meanwhile need not wait for a slow peer:
// detach() copies what is left of the frame (kFrameBytes at most) and releases the put.
//
// Owner: a connection. Thread safety: the loop's thread.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "relay/session/channel.h"
#include "relay/tcp/limits.h"

namespace millrace::tcp {

using namespace session;  // NOLINT: this folder is the session's channel over sockets

class OutgoingFrame {
 public:
  OutgoingFrame() = default;
  ~OutgoingFrame() { finish(); }
  OutgoingFrame(const OutgoingFrame&) = delete;
  OutgoingFrame& operator=(const OutgoingFrame&) = delete;

  // header.offset and header.length give which bytes of the put, which is held until finish() or detach().
  void start(Outgoing frame);
  bool open() const { return open_; }
  bool begun() const { return open_ && sent_ > 0; }
  bool of(const Put& put) const { return put_ && &*put_ == &put; }

  // What is to be sent next; not always all of it. Returns the entries filled.
  std::size_t fill(std::span<iovec> out) const;
  // So many bytes of it were sent. Closes the frame behind the last one.
  void advance(std::size_t bytes);
  // The bytes are sent and nothing of the checksum is: it is handed over, and the frame closed. It travels with what
  // comes next, as a packet of its own would cost the sender as much as 100 KiB of data and wake the reader for it.
  bool trailer_ready() const { return open_ && sums() && sent_ == kHeaderBytes + header_.length; }
  std::array<std::byte, kTrailerBytes> take_trailer();

  void detach();
  void finish();

 private:
  std::size_t left() const { return kHeaderBytes + body_bytes(header_) - sent_; }
  bool sums() const { return body_bytes(header_) > header_.length; }
  std::size_t payload_sent() const;
  // Where [from, from + size) of the payload lies.
  std::size_t locate(std::size_t from, std::size_t size, std::span<iovec> out) const;
  void hash_up_to(std::size_t end);

  Header header_;
  HeaderBytes head_{};
  Hold put_;
  std::vector<std::byte> copy_;  // after detach(): the payload's last bytes
  std::size_t sent_ = 0;         // of header, payload and trailer
  std::size_t hashed_ = 0;       // of the payload
  Hasher hasher_;
  std::array<std::byte, kTrailerBytes> trailer_{};  // good when all is hashed
  bool open_ = false;
};

}  // namespace millrace::tcp
