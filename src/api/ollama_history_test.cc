// Which call a result of an Ollama history answers, beside a model that looks at each open call.
#include "api/ollama_history.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <utility>
#include <vector>

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

TEST(OllamaHistoryTest, ResultsAnswerTheFirstOpenCallOfTheirName) {
  constexpr int kMessages = 4000;
  std::mt19937 random(7);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  OrderedJson messages = OrderedJson::array();
  std::vector<std::pair<std::string, std::string>> open;  // name and id
  std::vector<std::string> wanted;
  int calls = 0;
  for (int i = 0; i < kMessages; ++i) {
    if (below(2) == 0) {
      OrderedJson made = OrderedJson::array();
      for (int n = below(4); n >= 0; --n) {
        const std::string name(1, static_cast<char>('a' + below(5)));
        made.push_back({{"function", {{"name", name}, {"arguments", OrderedJson::object()}}}});
        open.emplace_back(name, fmt::format("call_{:09}", calls++));
      }
      messages.push_back({{"role", "assistant"}, {"tool_calls", made}});
      wanted.emplace_back();
      continue;
    }
    OrderedJson result{{"role", "tool"}, {"content", "r"}};
    const std::string name = below(3) == 0 ? "" : std::string(1, static_cast<char>('a' + below(6)));
    if (!name.empty()) result["tool_name"] = name;
    messages.push_back(result);
    const auto call =
        std::find_if(open.begin(), open.end(), [&](const auto& one) { return name.empty() || one.first == name; });
    wanted.push_back(call == open.end() ? "" : call->second);
    if (call != open.end()) open.erase(call);
  }
  messages.push_back({{"role", "user"}, {"content", "on"}});
  OrderedJson chat;
  ASSERT_TRUE(translate_ollama_messages(messages, ModelFacts(), chat).ok());
  for (int i = 0; i < kMessages; ++i) {
    EXPECT_EQ(chat["messages"][static_cast<std::size_t>(i)].value("tool_call_id", ""),
              wanted[static_cast<std::size_t>(i)])
        << "message " << i;
  }
}

}  // namespace
}  // namespace millrace::api
