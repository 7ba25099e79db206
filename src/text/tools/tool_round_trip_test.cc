// The calls that real chat templates write of a conversation (tests/golden/jinja/chat.json, rendered by Jinja2) come
// back from the parsers as the calls of that conversation.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "text/tools/output_parser.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Calls = std::vector<std::pair<std::string, OrderedJson>>;  // name and arguments

struct Turn {
  std::string_view begin, end;  // around what the model writes
};

const std::map<std::string, Turn> kTurns = {{"qwen3", {"<|im_start|>assistant\n", "<|im_end|>"}},
                                            {"qwen2_5", {"<|im_start|>assistant\n", "<|im_end|>"}},
                                            {"mistral_nemo", {"[TOOL_CALLS]", "</s>"}}};

Calls calls_of(const OrderedJson& messages) {
  Calls out;
  for (const OrderedJson& message : messages) {
    if (!message.contains("tool_calls")) continue;
    for (const OrderedJson& call : message["tool_calls"]) {
      out.emplace_back(call["function"]["name"], call["function"]["arguments"]);
    }
  }
  return out;
}

Calls parse_turns(const std::string& source, std::string text, const Turn& turn) {
  const wire::OutputParsing how{find_tool_dialect(source), {}, find_reasoning_dialect(source), false};
  OutputMarkers markers;
  for (const auto dialect : {markers_of(how.tools), markers_of(how.reasoning)}) {
    markers.texts.insert(markers.texts.end(), dialect.begin(), dialect.end());
  }
  Calls out;
  for (size_t at = text.find(turn.begin); at != std::string::npos; at = text.find(turn.begin, at + 1)) {
    const size_t begin = turn.begin.starts_with('<') ? at + turn.begin.size() : at;
    OutputParser parser(how, markers);
    OutputEvents events;
    parser.push(std::string_view(text).substr(begin, text.find(turn.end, begin) - begin), events);
    parser.finish(events);
    for (const OutputEvent& event : events) {
      if (event.kind == OutputEvent::Kind::kCallBegin) out.emplace_back(event.text, OrderedJson());
      if (event.kind == OutputEvent::Kind::kArguments) out.back().second = OrderedJson::parse(event.text);
      EXPECT_EQ(event.text.find("tool_call"), std::string::npos) << event.text;
    }
  }
  return out;
}

TEST(ToolRoundTrip, CallsThatTemplatesWriteAreRead) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/jinja/chat.json");
  const OrderedJson golden = OrderedJson::parse(file);
  size_t compared = 0;
  for (const OrderedJson& item : golden["cases"]) {
    const auto name = item["template"].get<std::string>();
    if (!kTurns.contains(name) || !item.contains("expected")) continue;
    const OrderedJson& messages = golden["conversations"][item["conversation"].get<std::string>()];
    const Calls wanted = calls_of(messages);
    if (wanted.empty() || wanted[0].second.is_string()) continue;
    const auto text = golden["texts"][item["expected"].get<size_t>()].get<std::string>();
    EXPECT_EQ(parse_turns(golden["templates"][name]["source"].get<std::string>(), text, kTurns.at(name)), wanted)
        << item;
    ++compared;
  }
  EXPECT_GT(compared, 20u);
}

}  // namespace
}  // namespace millrace
