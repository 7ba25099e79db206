// Conversation: the items of a session, in their sequence, bounded by kMaxRealtimeItems and
// kMaxRealtimeConversationBytes, and with at most as many pictures and audios as one request may have.
//
// Pictures and audio are kept as a request has them (PromptItem), checked when they came, and are the same bytes in
// every response that is made of the conversation.
//
// Owner: a RealtimeSession. Thread safety: under the session's lock.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "api/media_parts.h"
#include "api/realtime/dialect.h"
#include "base/status.h"

namespace millrace::api {

struct RealtimePart {
  std::string text;                 // or the transcript of what was spoken; of an audio of the user: "" without one
  std::optional<PromptItem> media;  // nullopt: it is a text
};

struct RealtimeItem {
  enum class Kind : uint8_t { kMessage, kCall, kOutput };  // a function's call has its arguments as its one text

  std::string id, role;
  std::string status = "completed";
  bool spoken = false;         // of the assistant: its text is a transcript
  int64_t spoken_samples = 0;  // of this server
  std::vector<RealtimePart> parts;
  Kind kind = Kind::kMessage;
  std::string name, call_id;  // of a call; an output has the call's id

  std::size_t bytes() const;
  std::size_t text_bytes() const;
  std::size_t media() const;
};

// As events show it: of audio and pictures no bytes.
nlohmann::ordered_json item_json(const RealtimeItem& item, const RealtimeDialect& dialect);

class Conversation {
 public:
  // Behind the item `previous`: "root" for the beginning, nullopt for the end. kInvalidArgument: no such item, or an id
  // that is taken; kTooLarge: over a limit.
  Status add(RealtimeItem item, const std::optional<std::string>& previous = {});
  // The errors of add() at the end.
  Status check(const RealtimeItem& item) const;
  RealtimeItem* find(const std::string& id);
  bool remove(const std::string& id);
  // "": it is the first.
  std::string previous_of(const std::string& id) const;
  std::string last_id() const { return items_.empty() ? "" : items_.back().id; }
  std::size_t bytes() const;
  std::size_t text_bytes() const;  // of these, all but pictures and audio

  // As the messages of a chat, with `instructions` as a system's before them. Parts that stand for media are
  // {"type": "audio"} and {"type": "image"}; `media` gets them in their sequence. Messages without a text are left out.
  // A call belongs to the assistant's message before it, or is one alone.
  Result<nlohmann::ordered_json> messages(const std::string& instructions, MediaParts& media) const;

 private:
  std::vector<RealtimeItem> items_;
};

}  // namespace millrace::api
