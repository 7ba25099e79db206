// Reasoning, and the two parsers in a row; markers as real tokenizers have them, and texts that spell them.
#include "text/tools/output_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/testing/test_data.h"
#include "text/detokenizer.h"

namespace millrace {
namespace {

std::string show(const OutputEvents& events) {
  std::string out;
  OutputEvent::Kind last = OutputEvent::Kind::kCallEnd;
  for (const OutputEvent& event : events) {
    constexpr const char* kNames[] = {"|text ", "|reasoning ", "|call ", "|arguments ", "|end"};
    if (event.kind != last || event.kind == OutputEvent::Kind::kCallEnd) out += kNames[static_cast<size_t>(event.kind)];
    out += event.text;
    last = event.kind;
  }
  return out;
}

wire::OutputParsing parsing(bool open = false) { return {ToolDialect::kQwen, {}, ReasoningDialect::kThink, open}; }

std::string parse(const wire::OutputParsing& how, std::string_view input, const std::vector<size_t>& cuts) {
  OutputMarkers markers;
  for (const auto dialect : {markers_of(how.tools), markers_of(how.reasoning)}) {
    markers.texts.insert(markers.texts.end(), dialect.begin(), dialect.end());
  }
  OutputParser parser(how, markers);
  OutputEvents events;
  size_t begin = 0;
  for (size_t end : cuts) {
    parser.push(input.substr(begin, end - begin), events);
    begin = end;
  }
  parser.push(input.substr(begin), events);
  parser.finish(events);
  return show(events);
}

void expect(const wire::OutputParsing& how, const std::string& input, const std::string& wanted) {
  EXPECT_EQ(parse(how, input, {}), wanted) << input;
  for (size_t i = 1; i < input.size(); ++i) EXPECT_EQ(parse(how, input, {i}), wanted) << input << " at " << i;
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<size_t> cuts;
    for (size_t i = 1; i < input.size(); ++i) {
      if (random() % 3 == 0) cuts.push_back(i);
    }
    EXPECT_EQ(parse(how, input, cuts), wanted) << input;
  }
}

const std::string kCall = R"(<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>)";
const std::string kCallEvents = R"(|call f|arguments {"a":1}|end)";

TEST(ReasoningParserTest, SplitsTheReasoningFromTheAnswer) {
  expect(parsing(), "<think>\nlong\n\nthought\n</think>\n\nanswer\n", "|reasoning long\n\nthought|text answer\n");
  expect(parsing(), "\n <think>a</think>b", "|reasoning a|text b");
  expect(parsing(), "<think>\n\n</think>\n\nanswer", "|text answer");
  expect(parsing(), "<think></think>", "");
  expect(parsing(), "<think>a <b </think", "|reasoning a <b </think");
  expect(parsing(), "<think>cut \n", "|reasoning cut \n");
  expect(parsing(), "<think>a<think>b</think>c<think>d</think>", "|reasoning a<think>b|text c<think>d</think>");
  expect(parsing(true), "\na\n</think>\n\nb", "|reasoning a|text b");
  expect(parsing(true), "<think>\na</think>b", "|reasoning a|text b");
  expect(parsing(true), "never closed", "|reasoning never closed");
}

TEST(ReasoningParserTest, TagsElsewhereAreText) {
  for (const char* input :
       {"a<think>b</think>c", "</think>", " \n", "\n\nplain", "<thin", "  <thinking>", "a </think> b"}) {
    expect(parsing(), input, std::string("|text ") + input);
  }
  expect(parsing(), "", "");
  wire::OutputParsing tools_only = parsing();
  tools_only.reasoning = ReasoningDialect::kNone;
  expect(tools_only, "<think>a</think>", "|text <think>a</think>");
}

TEST(ReasoningParserTest, CallsCountBehindTheReasoningAlone) {
  expect(parsing(), "<think>\nI call.\n</think>\n\n" + kCall, "|reasoning I call." + kCallEvents);
  expect(parsing(), "<think>" + kCall + "</think>" + kCall, "|reasoning " + kCall + kCallEvents);
  expect(parsing(), kCall, kCallEvents);
  expect(parsing(), "\n\n" + kCall + "\n", kCallEvents);
  expect(parsing(), "<think>a</think>b\n" + kCall, "|reasoning a|text b" + kCallEvents);
}

TEST(ReasoningParserTest, InlineItIsTextByteForByteWithoutCalls) {
  wire::OutputParsing how = parsing();
  how.reasoning_inline = true;
  for (const char* input : {"<think>\n\na\n</think>\n\nb", " \n<think>a", "x<think>y</think>",
                            "x \n<think> y <tool</think>", " </think> ", "<think><think></think></think>"}) {
    expect(how, input, std::string("|text ") + input);
  }
  expect(how, "<think>" + kCall + "</think>" + kCall, "|text <think>" + kCall + "</think>" + kCallEvents);
  how.reasoning_open = true;
  expect(how, "\n" + kCall + "</think>" + kCall, "|text \n" + kCall + "</think>" + kCallEvents);
}

TEST(ReasoningParserTest, KnowsWhetherItIsInside) {
  OutputMarkers markers;
  markers.texts = {"<think>", "</think>"};
  OutputParser parser(parsing(), markers);
  OutputEvents events;
  EXPECT_FALSE(parser.in_reasoning());
  parser.push("<think>", events);
  EXPECT_TRUE(parser.in_reasoning());
  parser.push("x</think>", events);
  EXPECT_FALSE(parser.in_reasoning());
}

// ---- real tokenizers ----

std::shared_ptr<const Tokenizer> load(const char* name) {
  auto tokenizer = Tokenizer::load(test_data(std::string("tokenizers/") + name).string());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

// As the detokenizer does: a marker's token goes as the marker, all else as text.
std::string parse_ids(const std::shared_ptr<const Tokenizer>& tokenizer, const wire::OutputParsing& how,
                      const std::vector<int32_t>& ids) {
  const OutputMarkers markers = find_output_markers(how, *tokenizer);
  IncrementalDetokenizer detokenizer(tokenizer, true);
  OutputParser parser(how, markers);
  OutputEvents events;
  for (const int32_t id : ids) {
    if (const OutputMarkers::Token* token = markers.find(id)) {
      parser.push_marker(token->text, events);
    } else {
      parser.push(detokenizer.push(id), events);
    }
  }
  parser.push(detokenizer.finish(), events);
  parser.finish(events);
  return show(events);
}

// The tokenizer of GPT-2 with Llama 3's marker as one token.
std::shared_ptr<const Tokenizer> with_python_tag() {
  std::ifstream file(test_data("tokenizers/gpt2") / "tokenizer.json");
  auto spec = nlohmann::json::parse(file);
  auto token = spec["added_tokens"].front();
  token["id"] = token["id"].get<int>() + 1;
  token["content"] = "<|python_tag|>";
  spec["added_tokens"].push_back(std::move(token));
  auto tokenizer = Tokenizer::from_json(spec.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

TEST(OutputMarkersTest, ATokenIsWhatCountsAndTextThatSpellsItIsText) {
  struct Case {
    const char* tokenizer;
    wire::OutputParsing how;
    std::string output, wanted;
  };
  const Case cases[] = {{"qwen3", parsing(), "<think>\nso ü\n</think>\n\n" + kCall, "|reasoning so ü" + kCallEvents},
                        {"qwen2_5",
                         {ToolDialect::kQwen, {}, ReasoningDialect::kNone, false},
                         "Well.\n" + kCall,
                         "|text Well." + kCallEvents},
                        {"mistral_nemo",
                         {ToolDialect::kMistral, {}, ReasoningDialect::kNone, false},
                         R"([TOOL_CALLS][{"name": "f", "arguments": {"a":1}}])",
                         kCallEvents},
                        {"python_tag",
                         {ToolDialect::kLlama3, {}, ReasoningDialect::kNone, false},
                         R"(Well. <|python_tag|>{"name": "f", "parameters": {"a":1}})",
                         "|text Well." + kCallEvents},
                        {"qwen3",
                         {ToolDialect::kQwenXml, {}, ReasoningDialect::kNone, false},
                         "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
                         R"(|call f|arguments {"a": 1}|end)"},
                        {"deepseek_v3",
                         {ToolDialect::kDeepSeek, {}, ReasoningDialect::kNone, false},
                         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>"
                         "<｜tool▁calls▁end｜>",
                         kCallEvents}};
  for (const Case& item : cases) {
    const auto tokenizer = item.tokenizer == std::string_view("python_tag") ? with_python_tag() : load(item.tokenizer);
    const auto ids = tokenizer->encode(item.output, {.add_special_tokens = false});
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(parse_ids(tokenizer, item.how, *ids), item.wanted) << item.tokenizer;
    // The same characters by ordinary tokens: what a model writes that quotes its prompt.
    const Segment quoted{item.output, false};
    const auto forged = tokenizer->encode(std::span(&quoted, 1), {.add_special_tokens = false});
    ASSERT_TRUE(forged.ok());
    EXPECT_EQ(parse_ids(tokenizer, item.how, *forged), "|text " + item.output) << item.tokenizer;
  }
}

TEST(OutputMarkersTest, ThePromptMayEndInsideTheReasoning) {
  for (const char* name : {"qwen3", "gpt2"}) {
    const auto tokenizer = load(name);
    const auto found = [&](const char* prompt, ReasoningDialect dialect) {
      wire::OutputParsing how{ToolDialect::kNone, {}, dialect};
      const bool closed =
          find_open_reasoning(*tokenizer, *tokenizer->encode(prompt, {.add_special_tokens = false}), how);
      EXPECT_EQ(closed, std::string_view(prompt).ends_with("</think>\n\n"));
      return std::pair(how.reasoning, how.reasoning_open);
    };
    constexpr auto kNone = ReasoningDialect::kNone, kThink = ReasoningDialect::kThink,
                   kOpen = ReasoningDialect::kThinkOpen;
    EXPECT_EQ(found("assistant\n<think>\n", kThink), std::pair(kThink, true));
    EXPECT_EQ(found("assistant\n<think>\n", kNone), std::pair(kNone, false));
    EXPECT_EQ(found("assistant\n", kThink), std::pair(kThink, false));
    EXPECT_EQ(found("<think>\n\n</think>\n\n", kThink), std::pair(kThink, false));
    EXPECT_EQ(found("<think>\n\n</think>\n\n", kOpen), std::pair(kThink, false));
    EXPECT_EQ(found("x", kOpen), std::pair(kOpen, false));
    EXPECT_EQ(found("", kOpen), std::pair(kOpen, false));
  }
}

TEST(OutputMarkersTest, WithoutATokenTheTextCounts) {
  const auto tokenizer = load("gpt2");
  const OutputMarkers markers = find_output_markers(parsing(), *tokenizer);
  EXPECT_TRUE(markers.tokens.empty());
  EXPECT_EQ(markers.texts.size(), 4u);
  const auto ids = tokenizer->encode("<think>a</think>" + kCall, {.add_special_tokens = false});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(parse_ids(tokenizer, parsing(), *ids), "|reasoning a" + kCallEvents);
}

}  // namespace
}  // namespace millrace
