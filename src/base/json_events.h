// read_json: the one reader of JSON. It gives a text's values as events, in their sequence, to a handler that builds
// what it wants of them: a tree (base/json.h), one with its keys in the client's sequence (base/ordered_json.h), values
// of a template (text/json_value.h), the table of a weight file (formats/safetensors.cc).
//
// nlohmann's lexer and grammar, with what every reader here must refuse besides: bytes behind a NUL, which that lexer
// takes for the end, and nesting over a limit, which overflows the stack of a walk through the result.
//
// Owner: the caller of read_json, for the time of the call. Thread safety: a handler is used by one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace millrace {

// For texts that were read with a limit before, or were written here.
inline constexpr int kAnyJsonDepth = std::numeric_limits<int>::max();

// What a value is. An error ends the reading and is read_json's. Strings are valid UTF-8 and may be moved from. Starts
// and ends come in pairs, a key before each member of an object; a key that stands twice comes twice.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual Status null() = 0;
  virtual Status boolean(bool value) = 0;
  virtual Status negative(int64_t value) = 0;                      // an integer below 0
  virtual Status natural(uint64_t value) = 0;                      // an integer from 0 to 2^64 - 1
  virtual Status real(double value, const std::string& text) = 0;  // `text` as it is written; no infinity, no NaN
  virtual Status string(std::string&& value) = 0;
  virtual Status start_object() = 0;
  virtual Status key(std::string&& name) = 0;
  virtual Status end_object() = 0;
  virtual Status start_array() = 0;
  virtual Status end_array() = 0;
};

// What handlers that build a tree have in common: all values but arrays and objects go to put(). `Tree`: a basic_json.
template <typename Tree>
class TreeHandler : public JsonHandler {
 public:
  Status null() final { return put(nullptr); }
  Status boolean(bool value) final { return put(value); }
  Status negative(int64_t value) final { return put(value); }
  Status natural(uint64_t value) final { return put(value); }
  Status real(double value, const std::string& /*text*/) final { return put(value); }
  Status string(std::string&& value) final { return put(std::move(value)); }

 private:
  virtual Status put(Tree value) = 0;
};

// Reads one document of at most `max_depth` levels of arrays and objects, without recursion. Errors: those of
// `handler`; kInvalidArgument of a malformed text, with the position of the byte but never with the text;
// kResourceExhausted where `handler` finds no memory, and kInternal for any other exception of the standard library.
Status read_json(std::string_view text, JsonHandler& handler, int max_depth);

}  // namespace millrace
