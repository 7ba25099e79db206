// CallParser: what the dialects' parsers have in common: markers found in text, white space before calls, bytes that
// are held until they are a call or text.
//
// A dialect handles bytes and markers one by one. It holds what may be a call, ends it with complete() or broken(), and
// gives everything else to text().
//
// Owned by one request; one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tools/call_stream.h"
#include "text/tools/json_extent.h"
#include "text/tools/marker_scanner.h"
#include "text/tools/tool_call.h"
#include "text/tools/tool_parser.h"

namespace millrace {

class CallParser : public ToolParser {
 public:
  explicit CallParser(ToolParserOptions options);
  void push(std::string_view text, OutputEvents& out) final;
  void push_marker(std::string_view marker, OutputEvents& out) final;
  void finish(OutputEvents& out) final;

 protected:
  virtual void on_byte(char byte) = 0;
  virtual void on_marker(std::string_view marker) = 0;
  // What is held is text: the dialect is where it is outside of calls.
  virtual void on_broken() = 0;
  // The output ends, and what is held is no call that was cut off.
  virtual bool ends_well() const { return false; }

  void text(char byte);
  void text(std::string_view bytes);
  bool only_space_so_far() const { return only_space_so_far_; }

  void hold(std::string_view marker) { held_ += marker; }
  void hold(char byte);  // broken() where it is over the limit
  // The JSON of a call begins, with this byte, or goes on. False: it is none, and broken() was called. `name`: where it
  // is the arguments alone.
  bool json_begins(char byte, std::string name = {});
  JsonExtent::State json_goes_on(char byte);
  bool in_json_string() const { return json_.in_string(); }
  int json_depth() const { return json_.depth(); }
  std::string_view json() const { return std::string_view(held_).substr(json_begin_); }
  // The calls of this JSON were given out while they came; complete() gets none.
  bool was_streamed() const { return streamed_; }

  const std::vector<std::string>& names() const { return options_.names; }
  // What is held are these calls.
  void complete(std::vector<ToolCall> calls);
  // What is held is no call.
  void broken();

 private:
  void handle(std::vector<MarkerScanner::Symbol> symbols, OutputEvents& out);
  void flush_text();
  // A byte of JSON, as the call under way has it.
  void stream(char byte, const JsonExtent& before);
  bool begin_call();
  void end_call();

  const ToolParserOptions options_;
  MarkerScanner scanner_;
  OutputEvents* out_ = nullptr;  // of the push under way
  std::string text_;             // of the push under way, not yet an event
  std::string space_;            // white space that a call may take along
  bool space_follows_call_ = false;
  bool only_space_so_far_ = true;
  std::string held_;
  std::size_t json_begin_ = 0;
  JsonExtent json_;
  std::size_t calls_ = 0;
  CallStream stream_;       // of a guarded output
  bool streamed_ = false;   // what is held has calls that are given out
  bool call_open_ = false;  // one is given out, and not all of its arguments
  std::string arguments_;   // of the push under way
};

inline bool is_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }

}  // namespace millrace
