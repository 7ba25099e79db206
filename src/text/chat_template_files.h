// Where a Hugging Face model folder keeps its chat templates and special tokens.
//
// Thread safety: a free function; reads files.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace {

struct ChatTemplateFile {
  std::string name;  // for messages: "chat_template.jinja"
  std::string text;
};

struct ChatTemplateFiles {
  std::optional<ChatTemplateFile> main;
  std::optional<ChatTemplateFile> tool_use;                         // serves requests with tools
  std::vector<std::pair<std::string, std::string>> special_tokens;  // "bos_token" -> "<s>"
};

// See ChatTemplate::load for the order. Missing files are no error; malformed ones are, with their path.
Result<ChatTemplateFiles> read_chat_template_files(const std::string& model_dir);

}  // namespace millrace
