// Free text until a trigger, then a tag: what is accepted, and which tokens may follow.
#include "grammar/structural_tag.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/state_table.h"
#include "grammar/token_mark.h"

namespace millrace::grammar {
namespace {

using GrammarPtr = std::shared_ptr<const Grammar>;

const std::vector<std::string> kMarkers = {"<call>", "</call>", "<think>", "</think>"};
constexpr const char* kCalls =
    R"({"triggers":["<call>"],"structures":[{"begin":"<call>\n","schema":{"enum":["a","b"]},"end":"\n</call>"},)"
    R"({"begin":"<call>:","schema":{"type":"integer"},"end":""}]})";

GrammarPtr compile(std::string_view source, TextStart start = TextStart::kContent,
                   const std::vector<std::string>& markers = {}) {
  const Result<Rules> rules = parse_structural_tag(source, markers, start);
  EXPECT_TRUE(rules.ok()) << rules.status().message();
  return rules.ok() ? Grammar::compile(*rules).value() : nullptr;
}

bool accepts(const GrammarPtr& grammar, std::string_view text) {
  StateTable states(grammar);
  return states.can_end(states.step(states.start(), text));
}

bool begins(const GrammarPtr& grammar, std::string_view text) {
  StateTable states(grammar);
  return states.step(states.start(), text) != kDeadState;
}

std::string mark(std::string_view token) { return token_mark(token); }

TEST(StructuralTag, IsFreeUntilATriggerComes) {
  const GrammarPtr grammar = compile(kCalls);
  for (const char* text : {"", "free <cal text <<call", "\xF0\x9F no UTF-8", "<call>\n\"a\"\n</call>", "x<call>:12",
                           "a<call>\n\"b\"\n</call>b<call>:7 and <call>\n\"a\"\n</call>"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const char* text : {"<call>x", "<call>\n\"c\"", "<call>\n\"a\"\n</call><call>y", "<<call>\n1"}) {
    EXPECT_FALSE(begins(grammar, text)) << text;
  }
  for (const char* text : {"<call>", "<call>\n", "<call>\n\"a\"", "<call>\n\"a\"\n</call", "z<call>:"}) {
    EXPECT_TRUE(begins(grammar, text) && !accepts(grammar, text)) << text;
  }
}

TEST(StructuralTag, SeveralTriggersAndOnesThatOverlap) {
  const GrammarPtr grammar =
      compile(R"({"triggers":["<a>","a>b","aab"],"structures":[{"begin":"<a>","schema":{"const":1},"end":"."},)"
              R"({"begin":"aab!","schema":{"const":2},"end":""},{"begin":"a>bc","schema":{"const":3},"end":""}]})");
  for (const char* text : {"<a>1.<a>1.", "aaab!2", "xa>bc3", "<aaab!2", "<a", "aa<"})
    EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"<a>b", "aaabx", "a>bb"}) EXPECT_FALSE(begins(grammar, text)) << text;
}

// A marker of the vocabulary is a token, and nothing else is it.
TEST(StructuralTag, AMarkerIsItsTokenAlone) {
  const GrammarPtr grammar = compile(kCalls, TextStart::kContent, kMarkers);
  const std::string open = mark("<call>"), close = mark("</call>");
  for (const std::string& text : {std::string("<call>x"), open + "\n\"a\"\n" + close,
                                  "x" + mark("<think>") + "<call>" + open + ":3" + close, mark("<think>") + "<call>"}) {
    EXPECT_TRUE(accepts(grammar, text)) << text;
  }
  for (const std::string& text : {open + "x", open + "\n\"a\"\n</call>", open + open, open + "\n" + mark("<think>")}) {
    EXPECT_FALSE(begins(grammar, text)) << text;
  }
}

TEST(StructuralTag, ReasoningIsFree) {
  const std::string open = mark("<call>"), think = mark("<think>"), end = mark("</think>"), call = open + ":1";
  const GrammarPtr may = compile(kCalls, TextStart::kMayReason, kMarkers);
  for (const std::string& text : {std::string("a"), call, think + "a", think + open + "b",
                                  " \n" + think + open + end + call, think + call + "x" + end + "y" + call}) {
    EXPECT_TRUE(accepts(may, text)) << text;
  }
  for (const std::string& text :
       {open + "b", "a" + think + open + "b", think + end + open + "b", think + open + end + open + "b"}) {
    EXPECT_FALSE(begins(may, text)) << text;
  }
  const GrammarPtr open_at_start = compile(kCalls, TextStart::kReasons, kMarkers);
  for (const std::string& text : {open + "b", "a" + open + "b" + end + call})
    EXPECT_TRUE(accepts(open_at_start, text)) << text;
  EXPECT_FALSE(begins(open_at_start, "a" + end + open + "b"));
}

TEST(StructuralTag, ADocumentExcludesFreeText) {
  const std::string source = std::string(kCalls).insert(1, R"("document":"{\"enum\":[10]}",)");
  const std::string open = mark("<call>"), end = mark("</think>"), call = open + ":1";
  const GrammarPtr content = compile(source, TextStart::kContent, kMarkers);
  for (const std::string& text : {std::string("10"), call, call + "\n" + call + "2", call + call}) {
    EXPECT_TRUE(accepts(content, text)) << text;
  }
  for (const std::string& text : {std::string("a"), "10" + call, call + "\n10", call + "x", open + "b", "\n" + call}) {
    EXPECT_FALSE(begins(content, text)) << text;
  }
  EXPECT_FALSE(accepts(content, ""));
  const GrammarPtr reasons = compile(source, TextStart::kReasons, kMarkers);
  for (const std::string& text : {"a" + open + "b" + end + "\n\n10", end + call}) {
    EXPECT_TRUE(accepts(reasons, text)) << text;
  }
  EXPECT_FALSE(accepts(reasons, "a"));
  EXPECT_FALSE(begins(reasons, end + "a"));
}

// Outside of tags all tokens may follow, the markers too; inside one, those of the tag.
TEST(StructuralTag, MasksOfAVocabulary) {
  std::vector<std::string> tokens{""};
  for (int byte = 0; byte < 0xFE; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const auto first = static_cast<int32_t>(tokens.size());
  for (const std::string& marker : kMarkers) tokens.push_back(mark(marker));
  tokens.emplace_back("é<");
  const auto grammar = compile(kCalls, TextStart::kContent, kMarkers);
  Matcher matcher(std::make_shared<Masks>(grammar, TokenTrie::build(tokens).value()));
  const std::vector<int32_t> end{0};
  const auto count = [&](const std::vector<int32_t>& read) {
    const TokenMask mask = matcher.mask(read, {}, end).value();
    std::size_t allowed = 0;
    for (int32_t id = 0; id < static_cast<int32_t>(tokens.size()); ++id) allowed += allows(mask, id);
    return allowed;
  };
  std::vector<int32_t> read;
  EXPECT_EQ(count(read), tokens.size());
  read = {'a' + 1, '<' + 1, first + 2};
  EXPECT_EQ(count(read), tokens.size());
  read.push_back(first);
  EXPECT_EQ(count(read), 2u);  // '\n' and ':'
  read.push_back(':' + 1);
  EXPECT_EQ(count(read), 11u);  // a digit or '-'
  read.push_back('0' + 1);
  EXPECT_EQ(count(read), tokens.size());
}

TEST(StructuralTag, SchemasKeepTheirReferences) {
  const GrammarPtr grammar = compile(
      R"({"triggers":["<"],"structures":[{"begin":"<a>","schema":{"$ref":"#/$defs/x","$defs":{"x":{"type":"array","items":{"$ref":"#/$defs/x"}}}},"end":""},)"
      R"({"begin":"<b>","schema":{"$ref":"#/$defs/x","$defs":{"x":{"const":true}}},"end":""}]})");
  for (const char* text : {"<a>[[],[[]]]", "<b>true<a>[]"}) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {"<a>true", "<b>[]", "<c>"}) EXPECT_FALSE(begins(grammar, text)) << text;
}

TEST(StructuralTag, SchemasKeepTheirCounts) {
  const GrammarPtr grammar = compile(
      R"({"triggers":["<a>"],"structures":[{"begin":"<a>","schema":{"type":"array","maxItems":2,"items":{"type":"string","maxLength":2}},"end":"."},)"
      R"({"begin":"<a>!","schema":{"type":"string","minLength":1},"end":""}]})");
  for (const char* text : {"<a>[].x", R"(<a>["ab","c"].)", R"(x<a>!"a")"}) EXPECT_TRUE(accepts(grammar, text)) << text;
  for (const char* text : {R"(<a>["abc)", R"(<a>["a","b",)", R"(<a>!"")"}) EXPECT_FALSE(begins(grammar, text)) << text;
}

TEST(StructuralTag, AllSchemasShareOneLimit) {
  const auto tags = [](int count) {
    std::string patterns, structures;
    for (int i = 0; i < 8; ++i) patterns += fmt::format(R"({}"^(a|b)*a(a|b){{7}}{}$":true)", i == 0 ? "" : ",", i);
    for (int i = 0; i < count; ++i) {
      structures += fmt::format(R"({}{{"begin":"a{}","schema":{{"patternProperties":{{{}}}}},"end":""}})",
                                i == 0 ? "" : ",", i, patterns);
    }
    return R"({"triggers":["a"],"structures":[)" + structures + "]}";
  };
  EXPECT_TRUE(parse_structural_tag(tags(1), {}, TextStart::kContent).ok());
  EXPECT_EQ(parse_structural_tag(tags(40), {}, TextStart::kContent).status().code(), StatusCode::kTooLarge);
}

TEST(StructuralTag, RefusesWhatIsNone) {
  const std::pair<std::string, const char*> cases[] = {
      {"[]", "the tags are no object; wanted one"},
      {"{}", "triggers is missing; wanted a list with at least one entry"},
      {R"({"triggers":[]})", "triggers is empty; wanted a list with at least one entry"},
      {R"({"triggers":["a"],"structures":7})", "structures is no list; wanted a list with at least one entry"},
      {R"({"triggers":[""],"structures":[1]})", "triggers[0] is empty; wanted a text"},
      {R"({"triggers":["a"],"structures":[{"begin":"a","end":""}]})",
       "structures[0].schema is missing; wanted begin, schema and end"},
      {R"({"triggers":["a"],"structures":[{"begin":"b","schema":true,"end":""}]})",
       "structures[0].begin begins with none of the triggers; wanted one that does"},
      {R"({"triggers":["a"],"structures":[{"begin":"a","schema":true,"end":7}]})",
       "structures[0].end is no string; wanted one"},
      {R"({"triggers":[")" + std::string(kMaxTagBytes + 1, 'a') + R"("],"structures":[1]})",
       "triggers[0] has 1025 bytes; wanted at most 1024"},
  };
  for (const auto& [source, message] : cases) {
    EXPECT_EQ(parse_structural_tag(source, {}, TextStart::kContent).status().message(), message)
        << source.substr(0, 60);
  }
  const auto no_schema =
      parse_structural_tag(R"({"triggers":["a"],"structures":[{"begin":"a","schema":true,"end":""}],"document":"{"})",
                           {}, TextStart::kContent);
  EXPECT_TRUE(no_schema.status().message().starts_with("document: ")) << no_schema.status().message();
  const auto not_served = parse_structural_tag(
      R"({"triggers":["a"],"structures":[{"begin":"a","schema":{"unevaluatedItems":false},"end":""}]})", {},
      TextStart::kContent);
  EXPECT_NE(not_served.status().message().find("structures[0]: schema.unevaluatedItems is not served"),
            std::string::npos)
      << not_served.status().message();
}

}  // namespace
}  // namespace millrace::grammar
