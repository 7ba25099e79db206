// RealtimeSession: one client of /v1/realtime: what it has set, its conversation, its input audio and the response
// under way. Events of the client come in; each becomes a change of that state and events of the server, or an `error`
// event that leaves the state as it was.
//
// A response is a chat as any other (chat_request.h) whose Reply writes into the WebSocket's stream.
//
// Owner: its WebSocket. Thread safety: all functions from any thread, under its lock; a Reply's sinks never take it.
//
// Invariants: at most one response and one transcript are under way; a turn that ends meanwhile is answered after it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "api/realtime/answer.h"
#include "api/realtime/books.h"
#include "api/realtime/conversation.h"
#include "api/realtime/input_audio.h"
#include "api/realtime/session_config.h"
#include "api/reply.h"
#include "api/routes.h"
#include "http/websocket.h"

namespace millrace::api {

class RealtimeSession : public http::WebSocketHandler, public std::enable_shared_from_this<RealtimeSession> {
 public:
  struct Client {
    http::RequestLabel label;
    std::string model;  // by which name it asked for it
    const RealtimeDialect& dialect;
  };

  RealtimeSession(ApiContext& context, std::shared_ptr<http::WebSocket> socket, Client client,
                  std::unique_ptr<SessionShare> share);

  void on_open() override;
  void on_message(std::string text) override;
  std::size_t weight() const override { return text_bytes_.load(std::memory_order_relaxed); }
  void on_drain() override;
  void on_close() override;

 private:
  using Handle = Status (RealtimeSession::*)(const Json& event);
  struct Entry {
    const char* type;
    Handle handle;
  };
  static const Entry kEvents[];

  // realtime_session.cc
  Status handle(const Json& event);
  nlohmann::ordered_json ordered_event() const;
  Status update(const Json& event);
  Status create_item(const Json& event);
  Status delete_item(const Json& event);
  Status retrieve_item(const Json& event);
  Status truncate_item(const Json& event);
  Status add_item(RealtimeItem item, const std::optional<std::string>& previous);
  void send(const nlohmann::ordered_json& event) { socket_->send(event_text(event)); }
  static std::string event_text(const nlohmann::ordered_json& event);
  void refuse(const Status& why, const std::string& client_event);
  void count_bytes();

  // realtime_turns.cc
  Status append_audio(const Json& event);
  Status commit_audio(const Json& event);
  Status clear_audio(const Json& event);
  Status take_turn(std::string wav);
  Status on_turn(const InputAudio::Event& event);
  Status create_response(const Json& event);
  Status cancel_response(const Json& event);
  Status respond(ResponseFields fields);
  void cancel(const char* reason);
  void keep_answer();
  void answer_turn();
  void answer_waiting_turn();
  std::function<void()> at_end(std::function<void(RealtimeSession&)> end);
  void end_response();
  void transcribe();
  void end_transcript(const std::shared_ptr<Transcript>& transcript);

  ApiContext& context_;
  const Client client_;
  const std::string id_, conversation_id_;
  std::atomic<std::size_t> text_bytes_{0};  // that a response is made of: the conversation's texts and the settings

  std::mutex mutex_;  // guards what follows
  std::shared_ptr<http::WebSocket> socket_;
  std::unique_ptr<SessionShare> share_;
  std::string text_;  // of the event under way
  SessionConfig config_;
  std::size_t config_bytes_ = 0;  // of it, as JSON
  Conversation conversation_;
  InputAudio input_;
  std::string turn_id_;     // the id that the item of the turn under way will have
  std::string error_code_;  // of the refusal under way, where clients look for one
  std::shared_ptr<RealtimeAnswer> answer_;
  std::weak_ptr<Reply> reply_;
  std::deque<std::string> untranscribed_;   // ids of items of the conversation
  std::shared_ptr<Transcript> transcript_;  // that is made; one at a time
  bool turn_waits_ = false;                 // a turn ended while a response was under way; speech may have begun anew
  bool draining_ = false;
};

}  // namespace millrace::api
