// WriterSide: what a TCP relay does for those who read from it. It listens, lets readers in, and sends them the ranges
// of open puts that they ask for, a frame of each in turn, so that a small get is not behind a large one.
//
// A put that is being read has an Offer here: where its bytes lie, who reads it and who has let go. The op table owns
// the put; an Offer touches the bytes only while it has it pinned. A reader whose connections are all gone has
// kReaderReturnMs to come back; then it is counted as one that let go, and the put ends with kUnavailable.
//
// Thread safety: the I/O thread alone. Owner: the relay.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "relay/op_table.h"
#include "relay/tcp/connection_set.h"
#include "relay/tcp/handshake.h"

namespace millrace::tcp {

class WriterSide : public FrameUser {
 public:
  WriterSide(IoLoop& loop, OpTable& table, const RelayOptions& options);
  ~WriterSide() override;

  // Takes the listening socket over; before the loop starts.
  Status open(const Identity& self, int listener);
  // A capability for one put of this instance: only who was given the descriptor knows it. Any thread.
  uint64_t generation_of(RelayOp op) const;
  void put_ended(RelayOp op, StatusCode code);
  // Puts whose end waits for a frame in flight: the frame gets a copy of its bytes, and they end.
  void release_ended();
  void flush() { connections_.flush(); }
  int64_t check_time(int64_t now_ms);
  void clear();
  void stop_listening();

  Status on_control(Connection& c, const Header& header, std::span<const std::byte> payload) override;
  Status data_begin(Connection& c, const Header& header) override;
  std::size_t data_space(Connection& c, std::span<iovec> out) override;
  void data_received(Connection& c, std::size_t bytes) override;
  Status data_end(Connection& c, uint64_t sum) override;
  bool next_data(Connection& c, OutgoingFrame& frame) override;
  Status on_connected(Connection& c) override;
  bool busy(const Connection& c) const override;
  void on_lost(Connection& c, const Status& why) override;

 private:
  using ReaderKey = std::pair<uint64_t, uint64_t>;  // the reader's instance, the ticket of its get
  struct Reading {
    int connections = 0;      // that it asked on
    int64_t lost_since = -1;  // when the last of them broke
  };
  struct Offer {
    PartMap map;
    uint64_t generation = 0;
    uint64_t sizes_hash = 0;
    std::string destination;
    int readers = 1;
    std::map<ReaderKey, Reading> reading;
    std::set<ReaderKey> finished;
    Status worst;
  };
  struct Job {
    uint64_t op = 0;
    uint64_t ticket = 0;
    uint64_t offset = 0;
    uint64_t end = 0;
    bool checksum = false;
  };
  struct Serving {  // of one connection
    std::deque<Job> jobs;
    std::set<std::pair<uint64_t, uint64_t>> asked;  // (op, ticket) that were not released
  };

  void on_listener();
  bool make_room();
  Status request(Connection& c, const Header& header, std::span<const std::byte> payload);
  Status release(Connection& c, const Header& header);
  uint64_t known_generation(RelayOp op) const;
  Result<Offer*> offer_of(RelayOp op);
  Status check_request(const Connection& c, const Offer& offer, const Header& header, const RequestBody& body) const;
  Status refuse(Connection& c, uint64_t op, uint64_t ticket, StatusCode code);
  void forget_reader(uint64_t op, const ReaderKey& key);
  void finish_reader(RelayOp op, Offer& offer, const ReaderKey& key, const Status& status);
  bool start_frame(Serving& serving, Job& job, OutgoingFrame& frame);
  void check_lost(int64_t now_ms, int64_t& due_ms);

  IoLoop& loop_;
  OpTable& table_;
  const RelayOptions options_;
  Identity self_;
  std::string key_;  // of generation_of()
  int listener_ = -1;
  uint64_t listener_watch_ = 0;
  int64_t accept_again_ms_ = 0;  // not 0: accept() ran out of descriptors
  std::unordered_map<uint64_t, Serving> serving_;
  std::unordered_map<RelayOp, Offer> offers_;
  ConnectionSet connections_;
};

}  // namespace millrace::tcp
