// The text side of a model wherever it is stored: in the files of a Hugging Face folder, or inside a GGUF file. Here
// the data passes from formats/ to text/, which do not know each other. Thread safety: free functions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/gguf_model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/tokenizer_tables.h"

namespace millrace {

// `model` is a directory or a GGUF file. Errors name the file. Stages of one process that name the same model share its
// tokenizer while one of them holds it.
Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const std::string& model);
// nullopt: the model has none.
Result<std::optional<ChatTemplate>> load_chat_template(const std::string& model);

Result<TokenizerTables> gguf_tokenizer_tables(const GgufModel& model);

// Tokens that end a turn or a text by their very name and are control tokens: GGUF files name one or two of them.
std::vector<int32_t> end_tokens_by_name(const Tokenizer& tokenizer);

}  // namespace millrace
