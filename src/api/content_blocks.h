// What the endpoints share that translate a conversation of another dialect into the messages of a chat: reading
// objects that name their type, and collecting a turn out of several of them.
//
// Thread safety: free functions, and values.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

inline constexpr std::size_t kShownBytes = 64;  // of a client's value, in an error

// kInvalidArgument: "NAME is of type integer; wanted an object".
Status wrong_type(const std::string& name, const Json& value, std::string_view wanted);
// The `type` of an object.
Result<std::string> read_block_type(const Json& block, const std::string& name);
// A string that must be there.
Result<std::string> read_block_string(const Json& block, const char* key, const std::string& name);
// The content of a message: texts, of which those without a picture or audio between them stand on lines of their own,
// and parts that stand for pictures and audios (api/media_parts.h).
class ChatContent {
 public:
  bool empty() const { return parts_.empty(); }
  void add_text(const std::string& more);
  void add_part(const std::string& type) { parts_.push_back({{"type", type}}); }
  // A string, or a list of parts where there are others than text. Empties this.
  nlohmann::ordered_json take();

 private:
  nlohmann::ordered_json parts_ = nlohmann::ordered_json::array();
};

// A turn, of which a chat has one message.
struct ChatTurn {
  std::string role;  // "": none is under way
  ChatContent content, reasoning;
  nlohmann::ordered_json calls = nlohmann::ordered_json::array();  // as tool_calls

  // Appends the message where there is something: any turn of the assistant, and content of others. The role stays.
  void end(nlohmann::ordered_json& messages);
};

}  // namespace millrace::api
