// OutgoingFrame: one DATA frame on its way out, header and bytes, sent from where the bytes lie.
//
// While it is open it holds the put pinned, so that the bytes stay. A put that is to end meanwhile need not wait for a
// slow peer: detach() copies what is left of the frame (kFrameBytes at most) and lets the put go.
//
// Thread safety: the relay's I/O thread.
#pragma once

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

  // What is to be sent next. Returns the pieces filled.
  std::size_t fill(std::span<iovec> out) const;
  // So many bytes of it were sent. Closes the frame behind the last one.
  void advance(std::size_t bytes);
  std::size_t left() const { return kHeaderBytes + header_.length - sent_; }

  void detach();
  void finish();

 private:
  Header header_;
  HeaderBytes head_{};
  const PartMap* parts_ = nullptr;
  RelayOp op_;
  std::function<void()> unpin_;
  std::vector<std::byte> copy_;  // after detach(): the payload's last bytes
  std::size_t sent_ = 0;         // of header and payload
  bool open_ = false;
};

}  // namespace millrace::tcp
