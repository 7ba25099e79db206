#include "text/tools/tool_parser.h"

#include <utility>

namespace millrace {
namespace {

class TextParser final : public ToolParser {
 public:
  void push(std::string_view text, OutputEvents& out) override { add_event(out, OutputEvent::Kind::kText, text); }
  void push_marker(std::string_view marker, OutputEvents& out) override { push(marker, out); }
  void finish(OutputEvents&) override {}
};

}  // namespace

std::unique_ptr<ToolParser> make_tool_parser(ToolParserOptions options) {
  switch (options.dialect) {
    case ToolDialect::kQwen:
      return make_qwen_parser(std::move(options));
    case ToolDialect::kLlama3:
      return make_llama3_parser(std::move(options));
    case ToolDialect::kMistral:
      return make_mistral_parser(std::move(options));
    case ToolDialect::kJson:
      return make_json_parser(std::move(options));
    case ToolDialect::kQwenXml:
      return make_qwen_xml_parser(std::move(options));
    case ToolDialect::kDeepSeek:
      return make_deepseek_parser(std::move(options));
    case ToolDialect::kNone:
      break;
  }
  return std::make_unique<TextParser>();
}

}  // namespace millrace
