// RealtimeAnswer: one response of a session, between the session, which asks for it, and the format, which writes its
// events while the engine makes it.
//
// Owner: the session and the format together (shared_ptr).
// Thread safety: `facts` are constant, `cancel_reason` is any thread's. The rest is the format's, under its Reply's
// lock, until the stream has ended; then the session's.
#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "api/realtime/conversation.h"
#include "api/realtime/dialect.h"
#include "api/realtime/session_config.h"
#include "wire/generation.h"

namespace millrace::api {

struct RealtimeAnswer {
  struct Facts {
    const RealtimeDialect& dialect;
    SessionConfig config;
    std::string id, conversation_id, item_id, previous_item_id;
    bool in_conversation = true;
    nlohmann::ordered_json metadata;
    int64_t audio_rows = 0, picture_rows = 0;  // of its prompt
  };

  explicit RealtimeAnswer(Facts given) : facts(std::move(given)) {}

  // What stands for it in the conversation until it is complete.
  RealtimeItem placeholder() const;
  // Begins an item; the one before has ended. The first one has facts.item_id.
  RealtimeItem& open(RealtimeItem::Kind kind);
  // The open item is complete, or as complete as it will be.
  void close(const std::string& item_status);
  // Of the open item, or the last one.
  std::string previous_id() const { return items.size() < 2 ? facts.previous_item_id : items[items.size() - 2].id; }
  // `response` of response.created and response.done. `details`: status_details; `usage`: null where there is none.
  nlohmann::ordered_json json(const nlohmann::ordered_json& details, const nlohmann::ordered_json& usage) const;

  const Facts facts;
  std::atomic<const char*> cancel_reason{"client_cancelled"};

  std::vector<RealtimeItem> items;  // that were announced
  bool is_open = false;             // the last of them
  bool done = false;                // response.done is written
  std::string text;                 // of the open item: text, transcript or arguments
  std::size_t samples = 0;
  std::string status = "in_progress";
};

// response.done of an answer that failed; it is done then.
nlohmann::ordered_json failed_event(RealtimeAnswer& answer, const ApiError& error);

}  // namespace millrace::api
