// What is shown of a prompt.
#include "api/prompt_preview.h"

#include <gtest/gtest.h>

namespace millrace::api {
namespace {

Prompt chat(const char* messages) {
  ChatPrompt out;
  out.messages = ChatValue::parse(messages).value();
  return out;
}

TEST(PromptPreview, OfAConversationTheLastTurnOfTheUser) {
  EXPECT_EQ(prompt_preview(chat(R"([{"role":"system","content":"secret"},{"role":"user","content":"first"},)"
                                R"({"role":"assistant","content":"a"},{"role":"user","content":"last"},)"
                                R"({"role":"tool","content":"t"}])")),
            "last");
  EXPECT_EQ(prompt_preview(chat(R"([{"role":"user","content":[{"type":"text","text":"what"},{"type":"image"},)"
                                R"({"type":"text","text":"is it?"}]}])")),
            "what is it?");
  for (const char* odd :
       {"[]", "{}", "7", R"([7,{"role":7,"content":7},{"role":"user"}])", R"([{"role":"user","content":null}])"}) {
    EXPECT_EQ(prompt_preview(chat(odd)), "") << odd;
  }
}

TEST(PromptPreview, OfTextsHowTheyBegin) {
  EXPECT_EQ(prompt_preview(TextPrompt{"Once"}), "Once");
  EXPECT_EQ(prompt_preview(TokenPrompt{{1, 2}}), "");
  EXPECT_EQ(prompt_preview(SegmentPrompt{{{"<|im_start|>", true}, {"mine", false}}}), "mine");
  const std::string before(kMaxPreviewBytes - 1, 'x');
  EXPECT_EQ(prompt_preview(TextPrompt{before + "é"}), before) << "no part of a character";
  EXPECT_EQ(prompt_preview(TextPrompt{before + "yz"}), before + "y");
}

}  // namespace
}  // namespace millrace::api
