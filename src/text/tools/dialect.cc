#include "text/tools/dialect.h"

#include <algorithm>
#include <array>

namespace millrace {
namespace {

constexpr std::array<std::string_view, 2> kQwenMarkers = {"<tool_call>", "</tool_call>"};
constexpr std::array<std::string_view, 1> kLlama3Markers = {"<|python_tag|>"};
constexpr std::array<std::string_view, 3> kMistralMarkers = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};
constexpr std::array<std::string_view, 5> kDeepSeekMarkers = {
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"};
constexpr std::array<std::string_view, 2> kThinkMarkers = {"<think>", "</think>"};
// Besides those: what templates put around tools and their results.
constexpr std::array<std::string_view, 10> kPromptMarkers = {
    "<tool_response>", "</tool_response>",   "<tools>",        "</tools>",      "[AVAILABLE_TOOLS]", "[/TOOL_RESULTS]",
    "[/TOOL_CALLS]",   "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[TOOL_CONTENT]"};

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

bool is_one_of(std::span<const std::string_view> markers, std::string_view token) {
  return std::find(markers.begin(), markers.end(), token) != markers.end();
}

}  // namespace

ToolDialect find_tool_dialect(std::string_view chat_template) {
  if (!contains(chat_template, "tools")) return ToolDialect::kNone;
  // Qwen3-Coder writes its arguments as XML between the same markers.
  if (contains(chat_template, "<tool_call>")) {
    return contains(chat_template, "<function=") ? ToolDialect::kQwenXml : ToolDialect::kQwen;
  }
  if (contains(chat_template, kDeepSeekMarkers[0])) return ToolDialect::kDeepSeek;
  if (contains(chat_template, "[TOOL_CALLS]")) return ToolDialect::kMistral;
  // Llama 3.1 marks the calls of built-in tools alone; Llama 3.2 writes the object alone.
  if (contains(chat_template, "<|python_tag|>")) return ToolDialect::kLlama3;
  if (contains(chat_template, "<|start_header_id|>") && contains(chat_template, "\"parameters\"")) {
    return ToolDialect::kLlama3;
  }
  return ToolDialect::kNone;
}

ReasoningDialect find_reasoning_dialect(std::string_view chat_template) {
  return contains(chat_template, "</think>") ? ReasoningDialect::kThink : ReasoningDialect::kNone;
}

Result<ToolDialect> tool_dialect_of(std::string_view flag, std::string_view chat_template) {
  if (flag == "auto") return find_tool_dialect(chat_template);
  if (flag == "qwen") return ToolDialect::kQwen;
  if (flag == "llama3") return ToolDialect::kLlama3;
  if (flag == "mistral") return ToolDialect::kMistral;
  if (flag == "qwen-xml") return ToolDialect::kQwenXml;
  if (flag == "deepseek") return ToolDialect::kDeepSeek;
  if (flag == "off") return ToolDialect::kNone;
  return invalid_argument("the tool parser is '{}'; wanted auto, qwen, qwen-xml, llama3, mistral, deepseek or off",
                          flag);
}

Result<ReasoningDialect> reasoning_dialect_of(std::string_view flag, std::string_view chat_template) {
  if (flag == "auto") return find_reasoning_dialect(chat_template);
  if (flag == "qwen3") return ReasoningDialect::kThink;
  if (flag == "deepseek") return ReasoningDialect::kThinkOpen;
  if (flag == "off") return ReasoningDialect::kNone;
  return invalid_argument("the reasoning parser is '{}'; wanted auto, qwen3, deepseek or off", flag);
}

std::span<const std::string_view> markers_of(ToolDialect dialect) {
  switch (dialect) {
    case ToolDialect::kQwen:
    case ToolDialect::kQwenXml:
      return kQwenMarkers;
    case ToolDialect::kLlama3:
      return kLlama3Markers;
    case ToolDialect::kMistral:
      return kMistralMarkers;
    case ToolDialect::kDeepSeek:
      return kDeepSeekMarkers;
    case ToolDialect::kNone:
    case ToolDialect::kJson:
      return {};
  }
  return {};
}

std::span<const std::string_view> markers_of(ReasoningDialect dialect) {
  if (dialect == ReasoningDialect::kNone) return {};
  return kThinkMarkers;
}

bool is_chat_marker(std::string_view token) {
  return is_one_of(kQwenMarkers, token) || is_one_of(kLlama3Markers, token) || is_one_of(kMistralMarkers, token) ||
         is_one_of(kDeepSeekMarkers, token) || is_one_of(kThinkMarkers, token) || is_one_of(kPromptMarkers, token);
}

}  // namespace millrace
