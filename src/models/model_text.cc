#include "models/model_text.h"

#include <array>
#include <map>
#include <mutex>

#include "text/chat_template_files.h"

namespace millrace {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";

std::string key(std::string_view name) { return std::string(kPrefix).append(name); }

Status wrong(std::string_view name, const GgufValue* value, std::string_view wanted) {
  return invalid_argument("{} is {}; wanted {}", key(name), value == nullptr ? "missing" : value->type_text(), wanted);
}

Status read_strings(const GgufHeader& header, std::string_view name, std::vector<std::string>& out) {
  const GgufValue* value = header.find(key(name));
  if (value == nullptr || !value->is_array || value->type != GgufType::kString) {
    return wrong(name, value, "an array of string");
  }
  out.assign(value->strings.begin(), value->strings.end());
  return ok_status();
}

// Absent is no error: the tables check what they need.
Status read_kinds(const GgufHeader& header, std::vector<int32_t>& out) {
  const GgufValue* value = header.find(key("token_type"));
  if (value == nullptr) return ok_status();
  if (!value->is_array) return wrong("token_type", value, "an array of i32");
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> kind = value->integer(i);
    if (!kind || *kind < INT32_MIN || *kind > INT32_MAX) return wrong("token_type", value, "an array of i32");
    out.push_back(static_cast<int32_t>(*kind));
  }
  return ok_status();
}

Status read_scores(const GgufHeader& header, std::vector<float>& out) {
  const GgufValue* value = header.find(key("scores"));
  if (value == nullptr) return ok_status();
  for (uint64_t i = 0; i < value->count; ++i) {
    const std::optional<double> score = value->real(i);
    if (!value->is_array || !score) return wrong("scores", value, "an array of f32");
    out.push_back(static_cast<float>(*score));
  }
  return ok_status();
}

Status read_id(const GgufHeader& header, std::string_view name, std::optional<int32_t>& out) {
  int64_t id = -1;
  RETURN_IF_ERROR(gguf_read(header, key(name), -1, -1, UINT32_MAX, id));
  if (id >= 0 && id != UINT32_MAX) out = static_cast<int32_t>(std::min<int64_t>(id, INT32_MAX));
  return ok_status();
}

Status read_flag(const GgufHeader& header, std::string_view name, std::optional<bool>& out) {
  bool value = false;
  if (header.find(key(name)) == nullptr) return ok_status();
  RETURN_IF_ERROR(gguf_read(header, key(name), std::nullopt, value));
  out = value;
  return ok_status();
}

Status read_tables(const GgufHeader& header, TokenizerTables& out) {
  std::string_view text;
  RETURN_IF_ERROR(gguf_read(header, key("model"), std::nullopt, text));
  out.model = text;
  RETURN_IF_ERROR(gguf_read(header, key("pre"), "default", text));
  out.pre = text;
  RETURN_IF_ERROR(read_strings(header, "tokens", out.tokens));
  if (out.model == "gpt2") RETURN_IF_ERROR(read_strings(header, "merges", out.merges));
  RETURN_IF_ERROR(read_kinds(header, out.kinds));
  if (out.model == "llama") RETURN_IF_ERROR(read_scores(header, out.scores));
  RETURN_IF_ERROR(read_id(header, "bos_token_id", out.bos));
  RETURN_IF_ERROR(read_id(header, "eos_token_id", out.eos));
  RETURN_IF_ERROR(read_id(header, "padding_token_id", out.pad));
  RETURN_IF_ERROR(read_id(header, "unknown_token_id", out.unk));
  if (out.model == "llama") {
    // SentencePiece's ids, where the file has none.
    if (!out.bos) out.bos = 1;
    if (!out.eos) out.eos = 2;
    if (!out.unk) out.unk = 0;
  }
  RETURN_IF_ERROR(read_flag(header, "add_bos_token", out.add_bos));
  RETURN_IF_ERROR(read_flag(header, "add_eos_token", out.add_eos));
  RETURN_IF_ERROR(gguf_read(header, key("add_space_prefix"), true, out.add_space_prefix));
  RETURN_IF_ERROR(gguf_read(header, "tokenizer.chat_template", "", text));
  out.chat_template = text;
  return ok_status();
}

// The file that `model` means, opened; nullopt: a Hugging Face folder.
Result<std::optional<GgufModel>> open_gguf(const std::string& model) {
  ASSIGN_OR_RETURN(const std::optional<std::string> path, find_gguf(model));
  if (!path) return std::optional<GgufModel>();
  ASSIGN_OR_RETURN(GgufModel opened, GgufModel::open(*path));
  return std::optional<GgufModel>(std::move(opened));
}

}  // namespace

Result<TokenizerTables> gguf_tokenizer_tables(const GgufModel& model) {
  TokenizerTables tables;
  if (const Status status = read_tables(model.header(), tables); !status.ok()) return status.with_prefix(model.path());
  return tables;
}

namespace {

Result<std::shared_ptr<const Tokenizer>> read_tokenizer(const std::string& model) {
  ASSIGN_OR_RETURN(const std::optional<GgufModel> gguf, open_gguf(model));
  if (!gguf) return Tokenizer::load(model);
  ASSIGN_OR_RETURN(const TokenizerTables tables, gguf_tokenizer_tables(*gguf));
  auto tokenizer = tokenizer_from_tables(tables);
  if (!tokenizer.ok()) return tokenizer.status().with_prefix(gguf->path() + ": tokenizer.ggml");
  return tokenizer;
}

}  // namespace

// The lock is held while it is read, so that a second caller gets the same one.
Result<std::shared_ptr<const Tokenizer>> load_tokenizer(const std::string& model) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::string, std::weak_ptr<const Tokenizer>>();
  std::lock_guard lock(mutex);
  if (auto tokenizer = loaded[model].lock()) return tokenizer;
  ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, read_tokenizer(model));
  loaded[model] = tokenizer;
  return tokenizer;
}

Result<std::optional<ChatTemplate>> load_chat_template(const std::string& model) {
  ASSIGN_OR_RETURN(const std::optional<GgufModel> gguf, open_gguf(model));
  if (!gguf) return ChatTemplate::load(model);
  ASSIGN_OR_RETURN(const TokenizerTables tables, gguf_tokenizer_tables(*gguf));
  ChatTemplateFiles files;
  const std::string name = "tokenizer.chat_template";
  if (!tables.chat_template.empty()) files.main = {name, tables.chat_template};
  std::string_view tool_use;
  RETURN_IF_ERROR(
      gguf_read(gguf->header(), "tokenizer.chat_template.tool_use", "", tool_use).with_prefix(gguf->path()));
  if (!tool_use.empty()) files.tool_use = {name + ".tool_use", std::string(tool_use)};
  for (const auto& [token, id] : {std::pair{"bos_token", tables.bos},
                                  {"eos_token", tables.eos},
                                  {"pad_token", tables.pad},
                                  {"unk_token", tables.unk}}) {
    if (!id || static_cast<std::size_t>(*id) >= tables.tokens.size()) continue;
    files.special_tokens.emplace_back(token, tables.tokens[static_cast<std::size_t>(*id)]);
  }
  Result<std::optional<ChatTemplate>> made = ChatTemplate::make(std::move(files));
  if (!made.ok()) return made.status().with_prefix(gguf->path());
  return made;
}

std::vector<int32_t> end_tokens_by_name(const Tokenizer& tokenizer) {
  constexpr std::array<std::string_view, 9> kNames = {"<|im_end|>", "<|endoftext|>",   "<|eot_id|>",
                                                      "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>",
                                                      "<|end|>",    "<|end_of_turn|>", "<｜end▁of▁sentence｜>"};
  std::vector<int32_t> out;
  for (const std::string_view name : kNames) {
    const std::optional<int32_t> id = tokenizer.id_of(name);
    if (id && tokenizer.is_control(*id)) out.push_back(*id);
  }
  return out;
}

}  // namespace millrace
