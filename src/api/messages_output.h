// MessageOutput: one parsed output as the content blocks of /v1/messages: text, thinking, tool_use.
//
// Owner: the format of the answer. Thread safety: one thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/reply_format.h"
#include "api/tool_fields.h"
#include "wire/output_parsing.h"

namespace millrace::api {

class MessageOutput {
 public:
  // `thinking_omitted`: blocks of thinking come without their text.
  MessageOutput(const OutputView& view, bool thinking_omitted) : view_(view), thinking_omitted_(thinking_omitted) {}

  // Streaming: the events content_block_start, content_block_delta and content_block_stop of what is new. end() closes
  // the block under way. The blocks are those of content().
  void stream(const std::vector<wire::OutputEvent>& events, EventWriter& out);
  void end(EventWriter& out);
  // Not streaming: the array of blocks, of all events.
  std::string content(const std::vector<wire::OutputEvent>& events);
  // Appends "stop_reason", "stop_sequence" and "stop_details" of an output whose events were all given.
  void append_stop(std::string& out, const wire::Finish& finish) const;

 private:
  enum class Block : uint8_t { kNone, kText, kThinking, kCall };

  // Calls `sink` with what opens a block, with its text, and with what closes it.
  template <typename Sink>
  void walk(const std::vector<wire::OutputEvent>& events, Sink& sink);
  template <typename Sink>
  void enter(Block block, const std::string& name, Sink& sink);
  template <typename Sink>
  void leave(Sink& sink);
  struct EventSink;
  struct ContentSink;

  const OutputView view_;
  const bool thinking_omitted_;
  Block open_ = Block::kNone;
  int blocks_ = 0, calls_ = 0;
  bool skipped_ = false;  // the call under way is left out
};

}  // namespace millrace::api
