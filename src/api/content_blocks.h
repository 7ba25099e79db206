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
// Parts of a text stand on lines of their own, as those of a chat message do. `any`: whether there was one before.
void append_line(std::string& text, bool& any, const std::string& more);

// A turn, of which a chat has one message.
struct ChatTurn {
  std::string role;  // "": none is under way
  std::string text, reasoning;
  bool has_text = false, has_reasoning = false;
  nlohmann::ordered_json calls = nlohmann::ordered_json::array();  // as tool_calls

  void add_text(const std::string& more) { append_line(text, has_text, more); }
  void add_reasoning(const std::string& more) { append_line(reasoning, has_reasoning, more); }
  // Appends the message where there is something: any turn of the assistant, and text of others. The role stays.
  void end(nlohmann::ordered_json& messages);
};

}  // namespace millrace::api
