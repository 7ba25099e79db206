#include "control/zap.h"

#include <zmq.h>

#include <string>
#include <string_view>
#include <vector>

#include "control/shared_key.h"

namespace millrace {
namespace {

constexpr std::size_t kQuestionFrames = 7;  // version, id, domain, address, identity, mechanism, the client's key
constexpr std::size_t kMaxQuestionFrames = 32;
constexpr std::size_t kMaxZapFrameBytes = 256;  // longer ones are cut, and so equal nothing

// One message whole, however long: a REP socket answers only what it has read to its last frame.
std::vector<std::string> receive_question(void* socket) {
  std::vector<std::string> frames;
  zmq_msg_t frame;
  zmq_msg_init(&frame);
  int more = 1;
  while (more != 0 && zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) >= 0) {
    more = zmq_msg_more(&frame);
    if (frames.size() >= kMaxQuestionFrames) continue;
    const std::string_view bytes(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
    frames.emplace_back(bytes.substr(0, kMaxZapFrameBytes));
  }
  zmq_msg_close(&frame);
  return frames;
}

// RFC 27: version, request id, domain, address, identity, mechanism, credentials; for CURVE the credential is the
// client's public key, 32 bytes. The domain is that of the listening socket and so not the client's to choose.
bool may_connect(const std::vector<std::string>& question) {
  if (question.size() != kQuestionFrames || question[0] != "1.0" || question[5] != "CURVE") return false;
  if (question[6].size() != kSharedKeyBytes) return false;
  char client[41];
  zmq_z85_encode(client, reinterpret_cast<const uint8_t*>(question[6].data()), kSharedKeyBytes);
  return question[2] == client;
}

}  // namespace

Result<void*> open_zap_handler(void* zmq_context) {
  void* socket = zmq_socket(zmq_context, ZMQ_REP);
  if (socket == nullptr) return internal_error("no socket for authentication: {}", zmq_strerror(zmq_errno()));
  const int linger = 0;
  // An answer that waits for a connection that is gone must not hold zmq_ctx_term().
  zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
  if (zmq_bind(socket, "inproc://zeromq.zap.01") == 0) return socket;
  Status status = internal_error("cannot bind the handler of authentication: {}", zmq_strerror(zmq_errno()));
  zmq_close(socket);
  return status;
}

bool answer_zap(void* socket) {
  const std::vector<std::string> question = receive_question(socket);
  if (question.empty()) return true;
  const bool yes = may_connect(question);
  // RFC 27: version, request id, status code, status text, user id, metadata. 400 is a refusal for good, 300 one that
  // may pass.
  const std::string answer[] = {
      "1.0", question.size() > 1 ? question[1] : "", yes ? "200" : "400", yes ? "OK" : "unknown key", "", ""};
  for (std::size_t i = 0; i < std::size(answer); ++i) {
    const int flags = ZMQ_DONTWAIT | (i + 1 < std::size(answer) ? ZMQ_SNDMORE : 0);
    if (zmq_send(socket, answer[i].data(), answer[i].size(), flags) < 0) return true;  // the asking socket is gone
  }
  return true;
}

}  // namespace millrace
