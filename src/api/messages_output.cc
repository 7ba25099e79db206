#include "api/messages_output.h"

#include <fmt/format.h>

#include "api/partial_json.h"
#include "base/json.h"

namespace millrace::api {
namespace {

using Kind = wire::OutputEvent::Kind;

constexpr std::string_view kCallIdPrefix = "toolu_";

// Where its text begins. Anthropic's types have a list or null for citations; Vercel's client takes no null.
constexpr std::string_view kTextHead = R"({"type":"text","citations":[],"text":)";

// Up to where the input stands.
void append_call_head(std::string& out, const std::string& name) {
  out += fmt::format(R"({{"type":"tool_use","id":"{}","caller":{{"type":"direct"}},"name":)", make_id(kCallIdPrefix));
  json_append_string(out, name);
  out += R"(,"input":)";
}

}  // namespace

struct MessageOutput::EventSink {
  MessageOutput& output;
  EventWriter& writer;

  void open(Block block, const std::string& name) {
    std::string& out = writer.begin("content_block_start");
    out += R"({"type":"content_block_start","index":)";
    append_integer(out, output.blocks_);
    out += R"(,"content_block":)";
    if (block == Block::kCall) {
      append_call_head(out, name);
      out += "{}}";
    } else {
      out += block == Block::kText ? std::string(kTextHead) + R"(""})"
                                   : R"({"type":"thinking","thinking":"","signature":""})";
    }
    out += '}';
    writer.end();
  }
  void text(Block block, const std::string& text) {
    std::string& out = writer.begin("content_block_delta");
    out += R"({"type":"content_block_delta","index":)";
    append_integer(out, output.blocks_);
    out += R"(,"delta":)";
    out += block == Block::kCall   ? R"({"type":"input_json_delta","partial_json":)"
           : block == Block::kText ? R"({"type":"text_delta","text":)"
                                   : R"({"type":"thinking_delta","thinking":)";
    json_append_string(out, text);
    out += "}}";
    writer.end();
  }
  void close(Block /*block*/) {
    writer.begin("content_block_stop") += fmt::format(R"({{"type":"content_block_stop","index":{}}})", output.blocks_);
    writer.end();
  }
};

struct MessageOutput::ContentSink {
  std::string out = "[";
  std::string collected;

  void open(Block block, const std::string& name) {
    if (out.size() > 1) out += ',';
    if (block == Block::kCall) {
      append_call_head(out, name);
    } else {
      out += block == Block::kText ? kTextHead : R"({"type":"thinking","thinking":)";
    }
  }
  void text(Block /*block*/, const std::string& text) { collected += text; }
  void close(Block block) {
    if (block == Block::kCall) {
      out += complete_json(collected);  // an object, as the model wrote it; one that was cut off is closed
    } else {
      json_append_string(out, collected);
    }
    if (block == Block::kThinking) out += R"(,"signature":"")";
    out += '}';
    collected.clear();
  }
};

template <typename Sink>
void MessageOutput::enter(Block block, const std::string& name, Sink& sink) {
  if (open_ == block && block != Block::kCall) return;
  leave(sink);
  open_ = block;
  sink.open(block, name);
}

template <typename Sink>
void MessageOutput::leave(Sink& sink) {
  if (open_ == Block::kNone) return;
  sink.close(open_);
  open_ = Block::kNone;
  ++blocks_;
}

template <typename Sink>
void MessageOutput::walk(const std::vector<wire::OutputEvent>& events, Sink& sink) {
  for (const wire::OutputEvent& event : events) {
    switch (event.kind) {
      case Kind::kText:
        if (event.text.empty()) break;
        enter(Block::kText, "", sink);
        sink.text(open_, event.text);
        break;
      case Kind::kReasoning:
        if (event.text.empty()) break;
        enter(Block::kThinking, "", sink);
        if (!thinking_omitted_) sink.text(open_, event.text);
        break;
      case Kind::kCallBegin:
        skipped_ = view_.one_call && calls_ > 0;
        if (skipped_) break;
        ++calls_;
        enter(Block::kCall, event.text, sink);
        break;
      case Kind::kArguments:
        if (!skipped_) sink.text(open_, event.text);
        break;
      case Kind::kCallEnd:
        if (!skipped_) leave(sink);
        break;
    }
  }
}

void MessageOutput::stream(const std::vector<wire::OutputEvent>& events, EventWriter& out) {
  EventSink sink{*this, out};
  walk(events, sink);
}

void MessageOutput::end(EventWriter& out) {
  EventSink sink{*this, out};
  leave(sink);
}

std::string MessageOutput::content(const std::vector<wire::OutputEvent>& events) {
  ContentSink sink;
  walk(events, sink);
  leave(sink);
  return sink.out + "]";
}

void MessageOutput::append_stop(std::string& out, const wire::Finish& finish) const {
  std::string_view reason = "end_turn";
  if (finish.reason == wire::FinishReason::kLength) {
    reason = "max_tokens";
  } else if (finish.reason == wire::FinishReason::kAborted) {
    reason = "abort";
  } else if (finish.matched_text) {
    reason = "stop_sequence";
  } else if (calls_ > 0) {
    reason = "tool_use";
  }
  out += fmt::format(R"("stop_reason":"{}","stop_sequence":)", reason);
  if (finish.matched_text) {
    json_append_string(out, *finish.matched_text);
  } else {
    out += "null";
  }
  out += R"(,"stop_details":null,"container":null)";  // of refusals, and of tools that run at the service
}

}  // namespace millrace::api
