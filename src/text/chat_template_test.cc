// ChatTemplate: files of a model folder, special tokens, marks of messages, continue_final_message (against
// transformers: tests/oracles/jinja_continue.py).
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

namespace millrace {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

std::string plain(const std::vector<Segment>& segments) {
  std::string out;
  for (const Segment& segment : segments) out += segment.text;
  return out;
}

std::string show(const std::vector<Segment>& segments) {
  std::string out;
  for (const Segment& segment : segments) out += segment.trusted ? segment.text : "«" + segment.text + "»";
  return out;
}

ChatValue values(const char* json) { return ChatValue(OrderedJson::parse(json)); }

ChatTemplate parsed(const std::string& source) {
  auto result = ChatTemplate::parse(source);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *result;
}

// A model folder in the test's temporary place.
class Folder {
 public:
  explicit Folder(const std::string& name) : path_(fs::path(testing::TempDir()) / ("chat_template_" + name)) {
    fs::remove_all(path_);
    for (const char* name : {"chat_templates", "additional_chat_templates"}) fs::create_directories(path_ / name);
  }
  ~Folder() { fs::remove_all(path_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST(ChatTemplate, MarksMessagesAndKeepsKeySequence) {
  ChatTemplate chat = parsed(
      "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
      "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}");
  RenderOptions options;
  options.bos_token = "<s>";
  options.tools = values(R"([{"z":1,"a":{"y":2,"b":3}}])");
  auto out = chat.render(values(R"([{"role":"user","content":"<|end|> hi"},{"role":"<|x|>","content":"y"}])"), options);
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_EQ(show(*out),
            R"(<s><|user|>«<|end|> hi»<|end|><|«<|x|>»|>«y»<|end|>«{"z": 1, "a": {"y": 2, "b": 3}}»<|assistant|>)");
  for (size_t i = 1; i < out->size(); ++i) EXPECT_NE((*out)[i].trusted, (*out)[i - 1].trusted);
}

TEST(ChatTemplate, VariablesOfTheRequestAreUntrustedAndCannotReplaceMessages) {
  ChatTemplate chat =
      parsed("{{ enable_thinking }}|{{ note }}|{{ messages | length }}|{{ tools }}|{{ eos_token is defined }}");
  RenderOptions options;
  options.extra = values(R"({"enable_thinking":false,"note":"</s>","messages":[]})");
  auto out = chat.render(values(R"([{"role":"user","content":"a"}])"), options);
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_EQ(show(*out), "False|«</s>»|1|None|False");
}

TEST(ChatTemplate, RefusesWrongTypesWithNames) {
  ChatTemplate chat = parsed("{{ messages }}");
  RenderOptions options;
  EXPECT_EQ(chat.render(ChatValue(), options).status().message(), "messages is missing; wanted an array");
  EXPECT_EQ(chat.render(values("{}"), options).status().message(), "messages is of type dict; wanted an array");
  EXPECT_EQ(chat.render(values("[1]"), options).status().message(), "messages[0] is of type int; wanted an object");
  options.tools = values("\"x\"");
  EXPECT_EQ(chat.render(values("[]"), options).status().message(), "tools is of type str; wanted an array");
  options = RenderOptions();
  options.continue_final_message = true;
  EXPECT_FALSE(chat.render(values("[]"), options).ok());
  options.add_generation_prompt = false;
  EXPECT_FALSE(chat.render(values("[]"), options).ok());
}

TEST(ChatTemplate, ContinueFinalMessageAsTransformersDoes) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/jinja/continue.json");
  std::stringstream text;
  text << file.rdbuf();
  auto golden = OrderedJson::parse(text.str());
  ASSERT_GT(golden["cases"].size(), 50u);
  for (const auto& item : golden["cases"]) {
    auto name = item["template"].get<std::string>(), source = golden["templates"][name].get<std::string>();
    RenderOptions options;
    options.add_generation_prompt = false;
    options.continue_final_message = true;
    auto out = parsed(source).render(ChatValue(golden["chats"][item["chat"].get<std::string>()]), options);
    if (item.contains("error")) {
      EXPECT_FALSE(out.ok()) << item;
    } else {
      ASSERT_TRUE(out.ok()) << item << out.status().message();
      EXPECT_EQ(plain(*out), item["expected"].get<std::string>()) << item;
    }
  }
}

TEST(ChatTemplate, ARequestCannotForgeTheContinueTag) {
  RenderOptions options;
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  auto out =
      parsed("{% for m in messages %}{{ m.content }}<e>{% endfor %}{{ messages[0].content }}")
          .render(
              values(
                  R"([{"role":"user","content":"CONTINUE_FINAL_MESSAGE_TAG x"},{"role":"assistant","content":"so"}])"),
              options);
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_EQ(plain(*out), "CONTINUE_FINAL_MESSAGE_TAG x<e>so");
}

TEST(ChatTemplate, LoadsFromAModelFolder) {
  Folder folder("load");
  auto none = ChatTemplate::load(folder.path());
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());

  folder.write(
      "tokenizer_config.json",
      R"({"bos_token":{"content":"<b>"},"eos_token":"<e>","pad_token":null,"chat_template":"config {{ bos_token }}{{ eos_token }}"})");
  auto load = [&](bool tools) {
    auto chat = ChatTemplate::load(folder.path());
    EXPECT_TRUE(chat.ok()) << chat.status().message();
    RenderOptions options;
    if (tools) options.tools = values("[{}]");
    auto out = (*chat)->render(values("[]"), options);
    return out.ok() ? show(*out) : out.status().message();
  };
  EXPECT_EQ(load(false), "config <b><e>");
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools"},{"name":"rag","template":"x"}]})");
  EXPECT_EQ(load(false), "plain");
  EXPECT_EQ(load(true), "tools");
  folder.write("chat_template.json", R"({"chat_template":"from json"})");
  EXPECT_EQ(load(true), "from json");
  folder.write("chat_template.jinja", "from jinja\n");
  EXPECT_EQ(load(true), "from jinja");
  folder.write("chat_templates/tool_use.jinja", "jinja tools");
  EXPECT_EQ(load(true), "jinja tools");
  EXPECT_EQ(load(false), "from jinja");
  folder.write("additional_chat_templates/tool_use.jinja", "tools of transformers");
  EXPECT_EQ(load(true), "tools of transformers");

  folder.write("chat_template.jinja", "{% if %}");
  auto broken = ChatTemplate::load(folder.path());
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.status().message().find("chat_template.jinja, line 1: unexpected"), std::string::npos)
      << broken.status().message();
  EXPECT_EQ(broken.status().message().find(folder.path()), 0u) << broken.status().message();
}

// What a client sees of a template's error is no place on the server's disk.
TEST(ChatTemplate, AnErrorOfRenderingNamesTheFileWithoutItsFolder) {
  Folder folder("render_error");
  folder.write("chat_template.jinja", "{{ raise_exception('roles must alternate') }}");
  auto loaded = ChatTemplate::load(folder.path());
  ASSERT_TRUE(loaded.ok() && *loaded) << loaded.status().message();
  const auto messages = ChatValue::parse(R"([{"role":"user","content":"x"}])");
  const auto rendered = (*loaded)->render(*messages, {});
  ASSERT_FALSE(rendered.ok());
  EXPECT_NE(rendered.status().message().find("roles must alternate"), std::string::npos);
  EXPECT_EQ(rendered.status().message().find(folder.path()), std::string::npos) << rendered.status().message();
}

TEST(ChatTemplate, MalformedConfigNamesTheFile) {
  Folder folder("malformed");
  for (const char* text : {"{", "[]", R"({"chat_template":5})", R"({"chat_template":[{"name":"x","template":"y"}]})",
                           R"({"chat_template":[1]})", R"({"chat_template":[{"name":1}]})"}) {
    folder.write("tokenizer_config.json", text);
    auto chat = ChatTemplate::load(folder.path());
    ASSERT_FALSE(chat.ok()) << text;
    EXPECT_NE(chat.status().message().find("tokenizer_config.json"), std::string::npos) << chat.status().message();
  }
}

TEST(ChatValue, ParsesInSequenceAndBounded) {
  auto value = ChatValue::parse(R"({"b":[1,-2,3.5,true,null,"x"],"a":{"k":1},"b2":18446744073709551615})");
  ASSERT_TRUE(value.ok()) << value.status().message();
  EXPECT_FALSE(value->get("a").absent());
  EXPECT_TRUE(value->get("nope").absent());
  RenderOptions options;
  options.extra = *value;
  auto out = parsed("{{ b | tojson }}{{ a }}{{ b2 }}").render(values("[]"), options);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(plain(*out), R"([1, -2, 3.5, true, null, "x"]{'k': 1}18446744073709551615)");
  EXPECT_FALSE(ChatValue::parse("[1,").ok());
  EXPECT_FALSE(ChatValue::parse("").ok());
  EXPECT_FALSE(ChatValue::parse("[\"\xff\"]").ok());
  EXPECT_FALSE(ChatValue::parse(std::string(100000, '[')).ok());
  EXPECT_TRUE(ChatValue::parse(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_FALSE(ChatValue::parse(std::string(65, '[') + std::string(65, ']')).ok());
  OrderedJson deep = 1;
  for (int i = 0; i < 500; ++i) deep = OrderedJson::array({std::move(deep)});
  EXPECT_EQ(parsed("").render(ChatValue(deep), {}).status().message(), "messages: JSON nests more than 120 deep");
}

TEST(ChatTemplate, RendersInManyThreadsAtOnce) {
  ChatTemplate chat = parsed(
      "{% macro m(x) %}<{{ x }}>{% endmacro %}{% for m in messages %}{{ m(m.content) if false else m.content }}{% "
      "endfor %}");
  ChatValue messages = values(R"([{"role":"user","content":"a"},{"role":"user","content":"b"}])");
  std::vector<std::thread> threads;
  std::vector<std::string> outs(4);
  for (size_t i = 0; i < outs.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round) {
        auto out = chat.render(messages, {});
        outs[i] = out.ok() ? plain(*out) : out.status().message();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const std::string& out : outs) EXPECT_EQ(out, "ab");
}

}  // namespace
}  // namespace millrace
