// The parsers of reasoning and tool calls over any output: what they find does not depend on the cuts, and is the
// output itself where it holds no call and no reasoning.
//
// Input: one byte for the dialects and options, then the output. 0x01 to 0x08 and 0x0E to 0x12 stand for the markers'
// tokens.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/tools/output_parser.h"

namespace {

using namespace millrace;

constexpr std::string_view kTokens[] = {"<tool_call>",
                                        "</tool_call>",
                                        "<|python_tag|>",
                                        "[TOOL_CALLS]",
                                        "[ARGS]",
                                        "[CALL_ID]",
                                        "<think>",
                                        "</think>",
                                        "<｜tool▁calls▁begin｜>",
                                        "<｜tool▁calls▁end｜>",
                                        "<｜tool▁call▁begin｜>",
                                        "<｜tool▁call▁end｜>",
                                        "<｜tool▁sep｜>"};
constexpr std::size_t kLowTokens = 8;  // the others come behind the bytes of white space
constexpr std::size_t kHighBegin = 0x0E;

const std::string_view* token_of(char byte) {
  const std::size_t at = static_cast<unsigned char>(byte);
  if (at >= 1 && at <= kLowTokens) return &kTokens[at - 1];
  const bool high = at >= kHighBegin && at - kHighBegin + kLowTokens < std::size(kTokens);
  return high ? &kTokens[at - kHighBegin + kLowTokens] : nullptr;
}

// Neighbours of a kind joined; a call stays apart.
OutputEvents joined(const OutputEvents& events) {
  OutputEvents out;
  for (const OutputEvent& event : events) {
    const bool joins = event.kind != OutputEvent::Kind::kCallBegin && event.kind != OutputEvent::Kind::kCallEnd;
    if (joins && !out.empty() && out.back().kind == event.kind) {
      out.back().text += event.text;
    } else {
      out.push_back(event);
    }
  }
  return out;
}

OutputEvents parse(const wire::OutputParsing& how, const OutputMarkers& markers, std::string_view output,
                   std::mt19937* random) {
  OutputParser parser(how, markers);
  OutputEvents events;
  while (!output.empty()) {
    if (const std::string_view* token = token_of(output[0])) {
      parser.push_marker(*token, events);
      output.remove_prefix(1);
      continue;
    }
    std::size_t size = 0;
    while (size < output.size() && !token_of(output[size])) ++size;
    if (random != nullptr) size = 1 + (*random)() % size;
    parser.push(output.substr(0, size), events);
    output.remove_prefix(size);
  }
  parser.finish(events);
  return joined(events);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 8192) return 0;
  const uint8_t options = data[0];
  wire::OutputParsing how{
      static_cast<ToolDialect>(options % 7), {}, static_cast<ReasoningDialect>(options / 7 % 3), (options & 64) != 0};
  how.reasoning_inline = size % 7 == 0;
  how.guarded = size % 5 == 0;
  if (options & 128) how.tool_names = {"f", "weather"};
  OutputMarkers markers;
  if (options & 32) {
    for (const std::string_view token : kTokens) markers.texts.emplace_back(token);
  }
  const std::string_view output(reinterpret_cast<const char*>(data) + 1, size - 1);
  const OutputEvents wanted = parse(how, markers, output, nullptr);
  std::mt19937 random(options);
  for (int round = 0; round < 3; ++round) {
    if (parse(how, markers, output, &random) != wanted) std::abort();
  }
  std::string spelled, seen;
  for (const char byte : output) {
    const std::string_view* token = token_of(byte);
    token ? spelled.append(*token) : spelled.append(1, byte);
  }
  bool plain = true;
  for (const OutputEvent& event : wanted) {
    plain &= event.kind == OutputEvent::Kind::kText;
    if (event.kind == OutputEvent::Kind::kText) seen += event.text;
  }
  // A guarded output ends inside of a call where it is cut off: what was held of the call is dropped.
  const bool whole = how.guarded ? spelled.starts_with(seen) : seen == spelled;
  const bool tags = spelled.find("think>") != std::string::npos;
  if (plain && how.reasoning == ReasoningDialect::kNone && !whole) std::abort();
  if (plain && !tags && how.reasoning == ReasoningDialect::kThink && !how.reasoning_open && !whole) std::abort();
  if (seen.size() > spelled.size()) std::abort();
  return 0;
}
