#include "api/prompt_preview.h"

#include "base/utf8.h"
#include "text/jinja/value.h"

namespace millrace::api {
namespace {

std::string cut(std::string_view text) { return std::string(utf8_prefix(text, kMaxPreviewBytes)); }

const jinja::Value* member(const jinja::Value& value, std::string_view name) {
  return value.is(jinja::Kind::kDict) ? value.as<jinja::DictObject>().find(name) : nullptr;
}

// Of a string, or of the parts of a list that are texts.
std::string content_text(const jinja::Value& content) {
  if (content.is_string()) return cut(content.as_text());
  std::string out;
  if (!content.is(jinja::Kind::kList)) return out;
  for (const jinja::Value& part : content.as<jinja::SequenceObject>().items) {
    const jinja::Value* const text = member(part, "text");
    if (text == nullptr || !text->is_string()) continue;
    if (!out.empty()) out += ' ';
    out += cut(text->as_text());
    if (out.size() > kMaxPreviewBytes) break;
  }
  return cut(out);
}

std::string last_turn(const ChatValue& messages) {
  if (messages.absent() || !messages.value()->is(jinja::Kind::kList)) return "";
  const auto& items = messages.value()->as<jinja::SequenceObject>().items;
  for (auto message = items.rbegin(); message != items.rend(); ++message) {
    const jinja::Value* const role = member(*message, "role");
    const jinja::Value* const content = member(*message, "content");
    if (role != nullptr && role->is_string() && role->as_text() == "user" && content != nullptr) {
      return content_text(*content);
    }
  }
  return "";
}

}  // namespace

std::string prompt_preview(const Prompt& prompt) {
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) return cut(text->text);
  if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) return last_turn(chat->messages);
  std::string out;
  if (const auto* parts = std::get_if<SegmentPrompt>(&prompt)) {
    for (const Segment& part : parts->segments) {
      if (!part.trusted && out.size() <= kMaxPreviewBytes) out += part.text;
    }
  }
  return cut(out);
}

}  // namespace millrace::api
