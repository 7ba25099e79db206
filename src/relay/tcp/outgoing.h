// OutgoingFrame: one DATA frame on its way out, header and bytes, sent from where the bytes lie.
//
// The checksum stands behind the bytes, so that they are hashed right after the kernel has read them, while they are in
// the core's cache: piece by piece, at about a third of the cost of fetching them first.
//
// While it is open it holds the put pinned, so that the bytes stay. A put that is to end meanwhile need not wait for a
// slow peer: detach() copies what is left of the frame (kFrameBytes at most) and lets the put go.
//
// Thread safety: the relay's I/O thread.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "relay/relay.h"
#include "relay/tcp/frame.h"
#include "relay/tcp/part_map.h"

namespace millrace::tcp {

class OutgoingFrame {
 public:
  OutgoingFrame() = default;
  ~OutgoingFrame() { finish(); }
  OutgoingFrame(const OutgoingFrame&) = delete;
  OutgoingFrame& operator=(const OutgoingFrame&) = delete;

  // header.offset and header.length say which bytes of `parts`, which stays valid until finish() or detach(). `unpin`
  // is called then, once.
  void start(const Header& header, const PartMap* parts, RelayOp op, std::function<void()> unpin);
  bool open() const { return open_; }
  bool begun() const { return open_ && sent_ > 0; }
  bool attached() const { return unpin_ != nullptr; }
  RelayOp op() const { return op_; }

  // What is to be sent next; not always all of it. Returns the pieces filled.
  std::size_t fill(std::span<iovec> out) const;
  // So many bytes of it were sent. Closes the frame behind the last one.
  void advance(std::size_t bytes);
  // The bytes are sent and nothing of the checksum is: it is handed over, and the frame closed. It travels with what
  // comes next, as a packet of its own would cost the sender as much as 100 KiB of data and wake the reader for it.
  bool ready_to_hand_over() const { return open_ && sums() && sent_ == kHeaderBytes + header_.length; }
  std::array<std::byte, kTrailerBytes> hand_over_trailer();

  void detach();
  void finish();

 private:
  std::size_t left() const { return kHeaderBytes + body_bytes(header_) - sent_; }
  bool sums() const { return body_bytes(header_) > header_.length; }
  std::size_t payload_sent() const;
  // Where [from, from + size) of the payload lies.
  std::size_t pieces(std::size_t from, std::size_t size, std::span<iovec> out) const;
  void hash_up_to(std::size_t end);

  Header header_;
  HeaderBytes head_{};
  const PartMap* parts_ = nullptr;
  RelayOp op_;
  std::function<void()> unpin_;
  std::vector<std::byte> copy_;  // after detach(): the payload's last bytes
  std::size_t sent_ = 0;         // of header, payload and trailer
  std::size_t hashed_ = 0;       // of the payload
  Hasher hasher_;
  std::array<std::byte, kTrailerBytes> trailer_{};  // good when all is hashed
  bool open_ = false;
};

}  // namespace millrace::tcp
