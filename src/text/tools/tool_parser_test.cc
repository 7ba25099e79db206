// The parsers of tool calls: what is a call and what stays text, byte for byte, in every way to cut the output.
#include "text/tools/tool_parser.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

namespace millrace {
namespace {

constexpr char kToken = '\1';  // around a marker that comes as a token

std::vector<std::string> texts_of(ToolDialect dialect) {
  const auto markers = markers_of(dialect);
  return {markers.begin(), markers.end()};
}

void push(ToolParser& parser, std::string_view chunk, OutputEvents& out) {
  while (!chunk.empty()) {
    const size_t begin = chunk.find(kToken);
    if (begin != 0) parser.push(chunk.substr(0, begin), out);
    if (begin == std::string_view::npos) return;
    const size_t end = chunk.find(kToken, begin + 1);
    parser.push_marker(chunk.substr(begin + 1, end - begin - 1), out);
    chunk.remove_prefix(end + 1);
  }
}

// The events as one line, neighbours of a kind joined.
std::string show(const OutputEvents& events) {
  std::string out;
  OutputEvent::Kind last = OutputEvent::Kind::kCallEnd;
  for (const OutputEvent& event : events) {
    const bool joins = event.kind == OutputEvent::Kind::kText || event.kind == OutputEvent::Kind::kArguments;
    if (!joins || event.kind != last) {
      constexpr const char* kNames[] = {"|text ", "|reasoning ", "|call ", "|arguments ", "|end"};
      out += kNames[static_cast<size_t>(event.kind)];
    }
    out += event.text;
    last = event.kind;
  }
  return out;
}

// A cut must not go through a token's spelling: it is one push.
std::vector<std::string_view> cut(std::string_view input, const std::vector<size_t>& at) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  for (size_t end : at) {
    if (end <= begin || std::count(input.begin(), input.begin() + static_cast<ptrdiff_t>(end), kToken) % 2 != 0)
      continue;
    out.push_back(input.substr(begin, end - begin));
    begin = end;
  }
  out.push_back(input.substr(begin));
  return out;
}

struct Reading {
  ToolDialect dialect = ToolDialect::kQwen;
  std::vector<std::string> names{};
  bool text_markers = true;
  bool guarded = false;
  std::vector<std::string> text_parameters{};
};

std::string parse(const Reading& reading, const std::vector<std::string_view>& chunks) {
  auto parser = make_tool_parser({reading.dialect, reading.names,
                                  reading.text_markers ? texts_of(reading.dialect) : std::vector<std::string>(),
                                  reading.guarded, reading.text_parameters});
  OutputEvents events;
  for (std::string_view chunk : chunks) push(*parser, chunk, events);
  parser->finish(events);
  return show(events);
}

// At once, cut at each position, byte by byte, and in random ways.
void expect(const Reading& reading, const std::string& input, const std::string& wanted) {
  EXPECT_EQ(parse(reading, {input}), wanted) << input;
  for (size_t i = 1; i < input.size(); ++i) EXPECT_EQ(parse(reading, cut(input, {i})), wanted) << input << " at " << i;
  std::vector<size_t> all(input.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  EXPECT_EQ(parse(reading, cut(input, all)), wanted) << input << " byte by byte";
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    std::vector<size_t> some;
    for (size_t i = 0; i < input.size(); ++i) {
      if (random() % 4 == 0) some.push_back(i);
    }
    EXPECT_EQ(parse(reading, cut(input, some)), wanted) << input;
  }
}

void expect_text(const Reading& reading, const std::string& input) {
  std::string plain;
  for (const char byte : input) {
    if (byte != kToken) plain += byte;
  }
  expect(reading, input, plain.empty() ? "" : "|text " + plain);
}

const std::string kCall = R"(<tool_call>
{"name": "weather", "arguments": {"city": "Zürich 🌦", "days": [1, 2]}}
</tool_call>)";
const std::string kCallEvents = R"(|call weather|arguments {"city": "Zürich 🌦", "days": [1, 2]}|end)";

TEST(QwenToolParser, ReadsCallsAndTheTextAroundThem) {
  const Reading qwen;
  expect(qwen, kCall, kCallEvents);
  expect(qwen, "Let me see.\n" + kCall, "|text Let me see." + kCallEvents);
  expect(qwen, kCall + "\n" + kCall + "\n", kCallEvents + kCallEvents);
  expect(qwen, "a\n\n" + kCall + "\n b \n" + kCall, "|text a" + kCallEvents + "|text \n b" + kCallEvents);
  expect(qwen, R"(<tool_call>{"arguments":{},"name":"f"}</tool_call>)", "|call f|arguments {}|end");
  expect(qwen, R"(<tool_call>{"name":"f"}</tool_call>)", "|call f|arguments {}|end");
  expect(qwen, R"(<tool_call>{"name":"f","arguments":null}</tool_call>)", "|call f|arguments {}|end");
  expect(qwen, R"(<tool_call>{"name":"f","arguments":{"a":"</tool_call>"}}</tool_call>)",
         R"(|call f|arguments {"a":"</tool_call>"}|end)");
  expect(qwen, R"(<tool_call>{"name":"f","arguments":{"a":"\"}<tool_call>\\"}}</tool_call>)",
         R"(|call f|arguments {"a":"\"}<tool_call>\\"}|end)");
}

TEST(QwenToolParser, WhatIsNoCallStaysTextByteForByte) {
  const Reading qwen;
  for (const char* input : {"",
                            " ",
                            "plain text\n",
                            "a < b <tool",
                            "</tool_call>",
                            "<tool_call>",
                            "<tool_call>\n",
                            "<tool_call>x",
                            "<tool_call></tool_call> \n",
                            "<tool_call>{}</tool_call>",
                            "<tool_call>[]</tool_call>",
                            "<tool_call>{\"name\": \"f\"",
                            "<tool_call>{\"name\": \"f\"}",
                            "<tool_call>{\"name\": \"f\"}</tool_cal",
                            "<tool_call>{\"name\": \"f\"} x</tool_call>",
                            "<tool_call>{\"name\": 5}</tool_call>",
                            "<tool_call>{\"name\": \"f g\"}</tool_call>",
                            "<tool_call>{\"name\": \"\"}</tool_call>",
                            "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
                            "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
                            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": }}</tool_call>",
                            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1]}</tool_call>",
                            "<tool_call>{\"name\": \"f\", \"name\": \"g\"}</tool_call>",
                            "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"parameters\": {}}</tool_call>",
                            "<tool_call>{'name': 'f'}</tool_call>",
                            "  lead <tool_call> {bad} </tool_call> trail  "}) {
    expect_text(qwen, input);
  }
  expect_text(qwen, "<tool_call>{\"name\": \"" + std::string(wire::kMaxToolNameBytes + 1, 'n') + "\"}</tool_call>");
  expect_text(qwen, "<tool_call>{\"name\": \"f\", \"arguments\": " + std::string(70, '[') + std::string(70, ']') + "}");
}

TEST(QwenToolParser, ABrokenCallDoesNotSpoilTheNext) {
  const Reading qwen;
  expect(qwen, "<tool_call>oops" + kCall, "|text <tool_call>oops" + kCallEvents);
  expect(qwen, "<tool_call>" + kCall, "|text <tool_call>" + kCallEvents);
  expect(qwen, "<tool_call>{\"name\":\"f\"}" + kCall, "|text <tool_call>{\"name\":\"f\"}" + kCallEvents);
  expect(qwen, "<<tool_call" + kCall, "|text <<tool_call" + kCallEvents);
}

TEST(QwenToolParser, OnlyTheTokenCountsWhereTheModelHasOne) {
  const Reading tokens{.text_markers = false};
  const std::string body = R"({"name":"f","arguments":{"a":1}})";
  expect(tokens, "\1<tool_call>\1\n" + body + "\n\1</tool_call>\1", R"(|call f|arguments {"a":1}|end)");
  expect_text(tokens, "<tool_call>" + body + "</tool_call>");
  expect_text(tokens, "\1<tool_call>\1" + body + "</tool_call>");
  expect_text(tokens, "<tool_call>" + body + "\1</tool_call>\1");
  expect(tokens, "\1<tool_call>\1{\"name\":\"f\",\"arguments\":{\"a\":\"\1</tool_call>\1\"}}\1</tool_call>\1",
         R"(|call f|arguments {"a":"</tool_call>"}|end)");
}

TEST(QwenToolParser, NamesThatTheRequestLacksAreText) {
  const Reading some{.names = {"weather", "f"}};
  expect(some, kCall, kCallEvents);
  expect_text(some, R"(<tool_call>{"name":"g","arguments":{}}</tool_call>)");
}

TEST(Llama3ToolParser, ReadsTheObjectAloneAndBehindTheMarker) {
  const Reading llama{.dialect = ToolDialect::kLlama3};
  const std::string call = R"({"name": "f", "parameters": {"a": "ü"}})", events = R"(|call f|arguments {"a": "ü"}|end)";
  expect(llama, call, events);
  expect(llama, "\n " + call + " \n", events);
  expect(llama, call + "; " + call + ";" + call, events + events + events);
  expect(llama, "<|python_tag|>" + call, events);
  expect(llama, "<|python_tag|> " + call + "<|python_tag|>" + call, events + events);
  expect(llama, "I call. <|python_tag|>" + call, "|text I call." + events);
  expect(llama, "\1<|python_tag|>\1" + call, events);
  expect(llama, R"({"type": "function", "name": "f", "arguments": {}})", "|call f|arguments {}|end");
  expect(llama, call + "\nDone; {", events + "|text \nDone; {");
}

TEST(Llama3ToolParser, OtherObjectsAreText) {
  const Reading llama{.dialect = ToolDialect::kLlama3, .names = {"f"}};
  for (const char* input :
       {R"({"city": "Paris", "name": "f"})", R"({"name": "Alice", "parameters": {}})", R"({"name": "f", "parameters")",
        R"(Answer: {"name": "f", "parameters": {}})", "{ }", "{\"\": 1}", "{{", "<|python_tag|>",
        "<|python_tag|>print(1)", R"(<|python_tag|>f.call(a="b"))", R"([{"name": "f", "parameters": {}}])",
        R"({"name": "f"} {)"}) {
    if (std::string_view(input).starts_with(R"({"name": "f"})")) continue;
    expect_text(llama, input);
  }
  expect(llama, R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {}})",
         R"(|call f|arguments {}|end|text ; {"name": "g", "parameters": {}})");
}

TEST(MistralToolParser, ReadsTheArrayAndTheNamedForms) {
  const Reading mistral{.dialect = ToolDialect::kMistral};
  const std::string events = R"(|call f|arguments {"a": 1}|end|call g|arguments {}|end)";
  expect(mistral,
         R"([TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}])",
         events);
  expect(mistral, R"(Sure. [TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}])",
         R"(|text Sure.|call f|arguments {"a": 1}|end)");
  expect(mistral, R"([TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{})", events);
  expect(mistral, R"([TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a": 1})", R"(|call f|arguments {"a": 1}|end)");
  expect(mistral, R"([TOOL_CALLS]f{"a": 1})", R"(|call f|arguments {"a": 1}|end)");
  expect(mistral, R"([TOOL_CALLS]f {"a": 1})", R"(|call f|arguments {"a": 1}|end)");
  const Reading tokens{.dialect = ToolDialect::kMistral, .text_markers = false};
  expect(tokens, "\1[TOOL_CALLS]\1[{\"name\": \"f\"}]", "|call f|arguments {}|end");
  expect_text(tokens, "[TOOL_CALLS][{\"name\": \"f\"}]");
}

TEST(MistralToolParser, WhatIsNoCallStaysText) {
  const Reading mistral{.dialect = ToolDialect::kMistral, .names = {"f"}};
  for (const char* input :
       {"[TOOL_CALLS]", "[TOOL_CALLS][]", "[TOOL_CALLS][{\"name\": \"f\"}", "[TOOL_CALLS][{\"name\": \"f\"}, 5]",
        "[TOOL_CALLS][{\"name\": \"f\"}, {\"name\": \"g\"}]", "[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]{", "[TOOL_CALLS]f[ARGS][1]", "[TOOL_CALLS]g[ARGS]{}", "[TOOL_CALLS]f[CALL_ID]a b[ARGS]{}",
        "f[ARGS]{}", "[TOOL", "[[", "[TOOL_CALLS]{\"name\": \"f\"}"}) {
    expect_text(mistral, input);
  }
}

TEST(JsonToolParser, TheOutputIsCalls) {
  const Reading json{.dialect = ToolDialect::kJson};
  expect(json, R"( [{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}] )",
         R"(|call f|arguments {"a": 1}|end|call g|arguments {}|end)");
  expect(json, R"({"name": "f", "arguments": {}})", "|call f|arguments {}|end");
  for (const char* input : {"[", "{}", "[{\"name\": \"f\"}", "x [{\"name\": \"f\"}]", "5"}) expect_text(json, input);
}

TEST(ToolParserLimits, HeldBytesAreBoundedAndTimeIsLinear) {
  for (const ToolDialect dialect :
       {ToolDialect::kQwen, ToolDialect::kLlama3, ToolDialect::kMistral, ToolDialect::kJson}) {
    for (const std::string begin : {"<tool_call>{\"name\":\"", "{\"name\":\"", "[TOOL_CALLS][{\"name\":\"", "[\"",
                                    "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", ""}) {
      for (const std::string filler : {"a", " ", "<tool_call>", "{", "[TOOL_CALLS]", "<"}) {
        std::string input = begin;
        while (input.size() < kMaxToolCallBytes + 1000) input += filler;
        auto parser = make_tool_parser({dialect, {}, texts_of(dialect)});
        OutputEvents events;
        size_t most = 0, text = 0;
        for (size_t at = 0; at < input.size(); at += 97) {
          parser->push(std::string_view(input).substr(at, 97), events);
          for (const OutputEvent& event : events) text += event.text.size();
          events.clear();
          most = std::max(most, std::min(input.size(), at + 97) - text);
        }
        parser->finish(events);
        for (const OutputEvent& event : events) text += event.text.size();
        EXPECT_EQ(text, input.size()) << begin << filler;
        EXPECT_LE(most, kMaxToolCallBytes + kMaxHeldSpace + 100) << begin << filler;
      }
    }
  }
}

TEST(ToolParserLimits, CallsOverTheLimitAreText) {
  const std::string call = R"(<tool_call>{"name":"f"}</tool_call>)";
  std::string input;
  for (size_t i = 0; i < 128; ++i) input += call;
  auto parser = make_tool_parser({ToolDialect::kQwen, {}, texts_of(ToolDialect::kQwen)});
  OutputEvents events;
  parser->push(input + call, events);
  parser->finish(events);
  ASSERT_EQ(events.size(), 3 * 128 + 1u);
  EXPECT_EQ(events.back(), (OutputEvent{OutputEvent::Kind::kText, call}));
}

TEST(ToolDialects, AreFoundInTheTemplateOrNamed) {
  EXPECT_EQ(find_tool_dialect("{% if tools %}<tool_call>{% endif %}"), ToolDialect::kQwen);
  EXPECT_EQ(find_tool_dialect("{% if tools %}<tool_call><function={% endif %}"), ToolDialect::kQwenXml);
  EXPECT_EQ(find_tool_dialect("{% if tools %}<｜tool▁calls▁begin｜>{% endif %}"), ToolDialect::kDeepSeek);
  EXPECT_EQ(find_tool_dialect("{% if tools %}[TOOL_CALLS]{% endif %}"), ToolDialect::kMistral);
  EXPECT_EQ(find_tool_dialect("{% if tools %}<|python_tag|>{% endif %}"), ToolDialect::kLlama3);
  EXPECT_EQ(find_tool_dialect("{% if tools %}<|start_header_id|>{\"name\": x, \"parameters\": y}{% endif %}"),
            ToolDialect::kLlama3);
  EXPECT_EQ(find_tool_dialect("{{ messages }}"), ToolDialect::kNone);
  EXPECT_EQ(*tool_dialect_of("auto", "tools [TOOL_CALLS]"), ToolDialect::kMistral);
  EXPECT_EQ(*tool_dialect_of("off", "tools [TOOL_CALLS]"), ToolDialect::kNone);
  EXPECT_EQ(*reasoning_dialect_of("auto", "<think></think>"), ReasoningDialect::kThink);
  EXPECT_EQ(*reasoning_dialect_of("deepseek", ""), ReasoningDialect::kThinkOpen);
  EXPECT_EQ(tool_dialect_of("hermes2", "").status().message(),
            "the tool parser is 'hermes2'; wanted auto, qwen, qwen-xml, llama3, mistral, deepseek or off");
  EXPECT_EQ(reasoning_dialect_of("x", "").status().message(),
            "the reasoning parser is 'x'; wanted auto, qwen3, deepseek or off");
}

// ---- guarded by a grammar: a call is given out while it comes -------------------------------------------------------

TEST(GuardedToolParser, GivesTheSameOfCompleteCalls) {
  const Reading qwen{.guarded = true};
  expect(qwen, kCall, kCallEvents);
  expect(qwen, "a\n\n" + kCall + "\n b \n" + kCall + "\n", "|text a" + kCallEvents + "|text \n b" + kCallEvents);
  expect(qwen, R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)", "|call f|arguments {}|end");
  expect(qwen, R"(<tool_call>{"name": "f", "arguments": {"name": "g", "arguments": {"x": "}{"}}}</tool_call>)",
         R"(|call f|arguments {"name": "g", "arguments": {"x": "}{"}}|end)");
  const Reading json{.dialect = ToolDialect::kJson, .guarded = true};
  const std::string one = R"({"name": "f", "arguments": {"a": [{"b": "\\\""}]}})";
  const std::string events = R"(|call f|arguments {"a": [{"b": "\\\""}]}|end)";
  expect(json, one, events);
  expect(json, "[" + one + ", " + one + "]\n", events + events);
  const Reading mistral{.dialect = ToolDialect::kMistral, .guarded = true};
  expect(mistral, "[TOOL_CALLS][" + one + "," + one + "]", events + events);
  expect(mistral, R"(hm [TOOL_CALLS]f[ARGS]{"a": {"b": 1}}[TOOL_CALLS]g[ARGS]{})",
         R"(|text hm|call f|arguments {"a": {"b": 1}}|end|call g|arguments {}|end)");
}

TEST(GuardedToolParser, GivesArgumentsAsTheyCome) {
  auto parser =
      make_tool_parser({.dialect = ToolDialect::kQwen, .text_markers = texts_of(ToolDialect::kQwen), .guarded = true});
  const std::pair<const char*, const char*> steps[] = {{"See. <tool_call>\n{\"name\": \"wea", "|text See."},
                                                       {"ther\", \"arguments\": ", ""},
                                                       {"{\"ci", "|call weather|arguments {\"ci"},
                                                       {"ty\": \"", "|arguments ty\": \""},
                                                       {"par", "|arguments par"},
                                                       {"is\"}", "|arguments is\"}|end"},
                                                       {"}\n</tool_call>", ""},
                                                       {" And", "|text  And"}};
  for (const auto& [chunk, wanted] : steps) {
    OutputEvents events;
    parser->push(chunk, events);
    EXPECT_EQ(show(events), wanted) << chunk;
  }
}

// What was given out is not taken back: the call has no end.
TEST(GuardedToolParser, ACallThatIsCutOffHasNoEnd) {
  const Reading qwen{.guarded = true};
  expect(qwen, R"(<tool_call>{"name": "f", "arguments": {"a": "b)", R"(|call f|arguments {"a": "b)");
  expect(qwen, R"(<tool_call>{"name": "f", "arguments": {"a": 1})", R"(|call f|arguments {"a": 1}|end)");
  expect(qwen, R"(<tool_call>{"name": "f", "arguments": {"a": 1}})", R"(|call f|arguments {"a": 1}|end)");
  const Reading json{.dialect = ToolDialect::kJson, .guarded = true};
  expect(json, R"([{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"a)",
         R"(|call f|arguments {}|end|call g|arguments {"a)");
}

// It can be nothing but a call, so its form is no text for a client.
TEST(GuardedToolParser, ACallThatIsCutOffBeforeItsArgumentsIsDropped) {
  const Reading qwen{.guarded = true};
  expect(qwen, R"(<tool_call>{"name": "f", "arg)", "");
  expect(qwen, "See.\n<tool_call>\n", "|text See.");
  expect(qwen, R"(<tool_call>{"name": "f", "arguments": {}}</tool_call> <tool_call>{"na)", "|call f|arguments {}|end");
  const Reading json{.dialect = ToolDialect::kJson, .guarded = true};
  expect(json, "[\n\n {\"name\" : \"weather\", \"argume", "");
  expect(json, R"([{"name": "f", "arguments": {}}, {"na)", "|call f|arguments {}|end");
  const Reading mistral{.dialect = ToolDialect::kMistral, .guarded = true};
  expect(mistral, "[TOOL_CALLS]weather[ARGS]", "");
  expect(mistral, "[TOOL_CALLS]f{}", "|call f|arguments {}|end");
}

// ---- Qwen3-Coder ----------------------------------------------------------------------------------------------------

TEST(QwenXmlToolParser, ReadsCalls) {
  const Reading xml{
      .dialect = ToolDialect::kQwenXml, .names = {"write"}, .text_parameters = {"write/path", "write/text"}};
  const std::string call =
      "<tool_call>\n<function=write>\n<parameter=path>\n/tmp/a\n</parameter>\n<parameter=text>\n12\n\n</parameter>\n"
      "<parameter=mode>\n644\n</parameter>\n<parameter=tags>\n[\"a\", 1]\n</parameter>\n"
      "<parameter=note>\nno JSON\n</parameter>\n</function>\n</tool_call>";
  const std::string events =
      R"(|call write|arguments {"path": "/tmp/a", "text": "12\n", "mode": 644, "tags": ["a", 1], "note": "no JSON"}|end)";
  expect(xml, "Well.\n" + call, "|text Well." + events);
  expect(xml, call + "\n" + call, events + events);
  expect(xml, "<tool_call><function=write></function></tool_call>", "|call write|arguments {}|end");
  expect_text(xml, "<tool_call><function=read></function></tool_call>");
  const Reading nullable{.dialect = ToolDialect::kQwenXml, .names = {"f"}, .text_parameters = {"?f/zip"}};
  for (const auto& [value, written] :
       {std::pair("12345", "\"12345\""), {"true", "\"true\""}, {"null", "null"}, {"None", "null"}}) {
    expect(nullable,
           fmt::format("<tool_call><function=f><parameter=zip>\n{}\n</parameter></function></tool_call>", value),
           fmt::format("|call f|arguments {{\"zip\": {}}}|end", written));
  }
  expect_text(xml, "<tool_call><function=write><parameter=a>b</function></tool_call>");
  expect_text(xml, "<tool_call><function=write></function>x</tool_call>");
  expect_text(xml, "<tool_call><function=write></function>");
}

// What Python's literals mean, where the schema has no string; elsewhere they are texts.
TEST(QwenXmlToolParser, ReadsPythonsLiterals) {
  const Reading typed{.dialect = ToolDialect::kQwenXml, .names = {"f"}, .text_parameters = {"!f/a", "f/b"}};
  const auto called = [](const char* key, const std::string& value) {
    return fmt::format("<tool_call><function=f><parameter={}>\n{}\n</parameter></function></tool_call>", key, value);
  };
  const std::pair<const char*, const char*> cases[] = {
      {"True", "true"},
      {"False", "false"},
      {"None", "null"},
      {"true", "true"},
      {"{'a': 1, 'b': [True, None, \"it's\"]}", R"({"a": 1, "b": [true, null, "it's"]})"},
      {R"(['a\n\'', 1e5])", R"(["a\n'", 1e5])"},
      {"TRUE", R"("TRUE")"},
      {"(1, 2)", "\"(1, 2)\""},
      {"{1: 2}", R"("{1: 2}")"},
      {"['a", R"("['a")"},
      {R"(['\q'])", R"("['\\q']")"},
      {R"(['\)", R"("['\\")"},
  };
  for (const auto& [value, json] : cases) {
    expect(typed, called("a", value), fmt::format("|call f|arguments {{\"a\": {}}}|end", json));
  }
  for (const char* key : {"b", "c"}) {  // a text, and one of which nothing is known
    expect(typed, called(key, "True"), fmt::format("|call f|arguments {{\"{}\": \"True\"}}|end", key));
  }
}

// ---- DeepSeek -------------------------------------------------------------------------------------------------------

TEST(DeepSeekToolParser, ReadsCallsOfBothForms) {
  const Reading deepseek{.dialect = ToolDialect::kDeepSeek, .names = {"weather", "clock"}};
  const std::string begin = "<｜tool▁calls▁begin｜>", end = "<｜tool▁calls▁end｜>";
  const std::string call =
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>";
  const std::string other = "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{\"zone\": \"utc\"}<｜tool▁call▁end｜>";
  const std::string called = R"(|call weather|arguments {"city": "Paris"}|end)",
                    asked = R"(|call clock|arguments {"zone": "utc"}|end)";
  expect(deepseek, "See.\n" + begin + call + end, "|text See." + called);
  expect(deepseek, begin + call + "\n" + other + end, called + asked);
  expect(deepseek, begin + other, asked);  // the end is the model's own habit
  expect_text(deepseek, begin + end);
  expect_text(deepseek, begin + "<｜tool▁call▁begin｜>thief<｜tool▁sep｜>{}<｜tool▁call▁end｜>" + end);
  expect_text(deepseek, begin + "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{<｜tool▁call▁end｜>" + end);
}

}  // namespace
}  // namespace millrace
