// EncodeService: encodes pictures and audio for stages in other processes (stages/media/remote_media.h): what they want
// comes to its inbox, goes through a MediaEncoder, and the features go back in parts. The same picture is encoded once,
// however many ask for it; a job that its sender wants no more is encoded no further.
//
// Owner: the worker `encode`. Thread safety: that worker's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "stages/media/media_encoder.h"
#include "stages/transfer/transfer_links.h"
#include "wire/media_messages.h"

namespace millrace {

inline constexpr std::size_t kMaxEncodeJobs = 1024;  // of all senders; above: kResourceExhausted
// Of a sender that the table of peers does not have yet: so many wait for the next one, for so long.
inline constexpr std::size_t kMaxEarlyJobs = 64;
inline constexpr int64_t kEarlyJobMs = 5'000;

class EncodeService {
 public:
  EncodeService(std::unique_ptr<MediaModel> model, transfer::TransferLinks links, wire::EncoderFacts facts);

  // Waits up to `timeout_ms` for a message, and takes those that have come.
  void receive(int timeout_ms);
  // Sends what was encoded. True: something waits to be encoded or sent.
  bool step(int64_t now_ms);
  void flush() { encoder_.flush(); }
  void describe(std::vector<wire::Metric>& metrics) const { encoder_.describe(metrics); }

 private:
  using Key = std::pair<std::string, uint64_t>;  // endpoint of the sender, its number
  struct Sending {
    uint64_t job = 0;
    MediaFeatures features;
    int64_t first = 0;
  };
  struct Sender {
    std::shared_ptr<Outbox> outbox;
    std::deque<Sending> features;
    std::deque<wire::EncodeEnd> ends;
  };

  struct Early {
    int64_t until_ms = 0;
    wire::EncodeMedia wanted;
  };

  void on(wire::EncodeMedia&& wanted);
  bool connect(const std::string& endpoint);
  void begin(wire::EncodeMedia wanted);
  void begin_early(int64_t now_ms);
  void on(const wire::EncodeEnd& end);
  void fail(const Key& key, const Status& status);
  void finish(const Key& key, const MediaEncoder::Encoded& encoded);
  Status check(const wire::EncodeMedia& wanted) const;
  bool send(Sender& sender);
  void drop_lost_senders();

  void end_span(const Key& key, int64_t bytes, const Status& why);

  MediaEncoder encoder_;
  const transfer::TransferLinks links_;
  const wire::EncoderFacts facts_;
  uint64_t last_id_ = 0;       // of the encoder's requests
  std::map<ReqId, Key> jobs_;  // that are encoded
  std::map<Key, ReqId> ids_;   // the same
  std::map<std::string, Sender> senders_;
  std::map<Key, Span> spans_;  // of jobs that are traced, until their features are on their way
  std::deque<Early> early_;
  uint64_t seen_peers_ = 0;
};

}  // namespace millrace
