// Tables to tokenizer.json: so that tokenizers of GGUF files go through the very code that reads Hugging Face's.
#include "text/tokenizer_tables.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/json.h"
#include "base/utf8.h"

namespace millrace {
namespace {

constexpr std::size_t kMaxSentencePieceBytes = 1024;  // SentencePiece's own limit is far lower
constexpr std::string_view kMark = "\u2581";          // SentencePiece's space

// Files without token_type have normal tokens only.
TokenKind kind_of(const TokenizerTables& tables, std::size_t id) {
  return tables.kinds.empty() ? TokenKind::kNormal : static_cast<TokenKind>(tables.kinds[id]);
}

Status check_id(const TokenizerTables& tables, std::string_view name, const std::optional<int32_t>& id) {
  if (!id || (*id >= 0 && static_cast<std::size_t>(*id) < tables.tokens.size())) return ok_status();
  return invalid_argument("{}_token_id is {}; wanted 0 to {}", name, *id,
                          static_cast<int64_t>(tables.tokens.size()) - 1);
}

// All of the file's numbers are checked here, once: everything below indexes with them and checks no more.
Status check(const TokenizerTables& tables) {
  const std::size_t count = tables.tokens.size();
  if (count == 0 || count > static_cast<std::size_t>(kMaxVocab)) {
    return invalid_argument("tokens has {} entries; wanted 1 to {}", count, kMaxVocab);
  }
  if (!tables.kinds.empty() && tables.kinds.size() != count) {
    return invalid_argument("token_type has {} entries; wanted {}, as many as tokens", tables.kinds.size(), count);
  }
  for (std::size_t i = 0; i < tables.kinds.size(); ++i) {
    // GGUF's own numbers, so that the cast to TokenKind is one of its values.
    if (tables.kinds[i] < 1 || tables.kinds[i] > 6) {
      return invalid_argument("token_type[{}] is {}; wanted 1 to 6", i, tables.kinds[i]);
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (utf8_find_invalid(tables.tokens[i]) != std::string_view::npos) {
      return invalid_argument("tokens[{}] is not UTF-8; wanted text", i);
    }
  }
  if (tables.merges.size() > kMaxMerges) {
    return error(StatusCode::kTooLarge, "merges has {} entries; wanted at most {}", tables.merges.size(), kMaxMerges);
  }
  RETURN_IF_ERROR(check_id(tables, "bos", tables.bos));
  RETURN_IF_ERROR(check_id(tables, "eos", tables.eos));
  RETURN_IF_ERROR(check_id(tables, "padding", tables.pad));
  RETURN_IF_ERROR(check_id(tables, "unknown", tables.unk));
  if (tables.model == "gpt2") return ok_status();
  if (tables.model != "llama") {
    return error(StatusCode::kUnsupported, "model is \"{}\"; wanted gpt2 or llama", tables.model.substr(0, 40));
  }
  if (tables.scores.size() != count) {
    return invalid_argument("scores has {} entries; wanted {}, as many as tokens", tables.scores.size(), count);
  }
  for (std::size_t i = 0; i < count; ++i) {
    // A NaN would make the sort by score below undefined behaviour.
    if (!std::isfinite(tables.scores[i])) {
      return invalid_argument("scores[{}] is {}; wanted a finite number", i, tables.scores[i]);
    }
    // merges_of_scores() looks up every split of a token: its time grows with the square of the length.
    if (tables.tokens[i].size() > kMaxSentencePieceBytes) {
      return error(StatusCode::kTooLarge, "tokens[{}] has {} bytes; wanted at most {}", i, tables.tokens[i].size(),
                   kMaxSentencePieceBytes);
    }
  }
  // SentencePiece always has one. Without it a character that is neither a token nor spelled by byte tokens would
  // vanish.
  if (!tables.unk) return invalid_argument("unknown_token_id is missing; wanted the id of the unknown token");
  return ok_status();
}

// Appends `text` as a JSON string.
void append(std::string& out, std::string_view text) { json_append_string(out, text); }

// Byte tokens (<0x0A>) are not among them: they are entries of the vocabulary, which byte_fallback looks up by name.
bool is_added(TokenKind kind) {
  return kind == TokenKind::kControl || kind == TokenKind::kUserDefined || kind == TokenKind::kUnknown;
}

class Writer {
 public:
  explicit Writer(const TokenizerTables& tables) : tables_(tables) {}

  Result<TokenizerJson> run();

 private:
  bool llama() const { return tables_.model == "llama"; }
  void add_vocab();
  Status add_merges();
  void add_added();
  void add_components(const PreTokenizerRules* rules);
  void add_post_processor(bool bos, bool eos);
  std::string config() const;

  const TokenizerTables& tables_;
  std::string vocab_, merges_, out_;
};

// Words must not come out as control tokens, so that only the added-token search finds those; tokens that merges make
// are in the vocabulary too.
void Writer::add_vocab() {
  std::unordered_map<std::string_view, std::size_t> made;
  for (std::size_t id = 0; id < tables_.tokens.size(); ++id) {
    if (is_added(kind_of(tables_, id))) made.emplace(tables_.tokens[id], id);
  }
  std::unordered_set<std::size_t> wanted;
  std::string merged;
  for (const std::string& merge : tables_.merges) {
    if (made.empty()) break;
    merged = merge;
    if (const std::size_t space = merged.find(' ', 1); space != std::string::npos) merged.erase(space, 1);
    if (const auto at = made.find(merged); at != made.end()) wanted.insert(at->second);
  }
  for (std::size_t id = 0; id < tables_.tokens.size(); ++id) {
    const TokenKind kind = kind_of(tables_, id);
    if (kind == TokenKind::kUnused) continue;
    // The model's unk_token must be an entry of its vocabulary.
    const bool unknown = llama() && tables_.unk == static_cast<int32_t>(id);
    if (is_added(kind) && !unknown && !wanted.contains(id)) continue;
    vocab_ += vocab_.empty() ? "" : ",";
    append(vocab_, tables_.tokens[id]);
    vocab_ += fmt::format(":{}", id);
  }
}

Status Writer::add_merges() {
  const auto add = [this](std::string_view left, std::string_view right) {
    merges_ += merges_.empty() ? "[" : ",[";
    append(merges_, left);
    merges_ += ',';
    append(merges_, right);
    merges_ += ']';
  };
  // GGUF's files of the llama kind have scores instead of merges.
  if (llama()) {
    ASSIGN_OR_RETURN(const auto merges, merges_of_scores(tables_));
    for (const auto& [left, right] : merges) add(left, right);
    return ok_status();
  }
  for (std::size_t i = 0; i < tables_.merges.size(); ++i) {
    // The first byte may be a space in itself, never the border.
    const std::string_view merge = tables_.merges[i];
    const std::size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size() ||
        utf8_find_invalid(merge) != std::string_view::npos) {
      return invalid_argument("merges[{}] is no pair of tokens; wanted \"left right\"", i);
    }
    add(merge.substr(0, space), merge.substr(space + 1));
  }
  return ok_status();
}

void Writer::add_added() {
  out_ += R"("added_tokens":[)";
  bool first = true;
  for (std::size_t id = 0; id < tables_.tokens.size(); ++id) {
    const TokenKind kind = kind_of(tables_, id);
    // A hole in the table has an empty text, which no search could match; the loader refuses it.
    if (!is_added(kind) || tables_.tokens[id].empty()) continue;
    out_ += first ? "" : ",";
    first = false;
    out_ += fmt::format(R"({{"id":{},"content":)", id);
    append(out_, tables_.tokens[id]);
    out_ += fmt::format(R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":{}}})",
                        kind != TokenKind::kUserDefined);
  }
  out_ += "],";
}

void Writer::add_components(const PreTokenizerRules* rules) {
  CHECK(llama() || rules != nullptr);  // run() has refused other names
  if (!llama()) {
    out_ += fmt::format(R"("normalizer":{},"pre_tokenizer":{},"decoder":{},)",
                        rules->nfc ? R"({"type":"NFC"})" : "null", rules->json, R"({"type":"ByteLevel"})");
    return;
  }
  // The components that Hugging Face's converter writes for Llama 2 (convert_slow_tokenizer.py): spaces become the
  // mark, one is put before the text, and the decoder does the reverse.
  const bool prefix = tables_.add_space_prefix;
  out_ += fmt::format(
      R"("normalizer":{{"type":"Sequence","normalizers":[{}{{"type":"Replace","pattern":{{"String":" "}},"content":"{}"}}]}},)",
      prefix ? fmt::format(R"({{"type":"Prepend","prepend":"{}"}},)", kMark) : "", kMark);
  out_ += fmt::format(
      R"("pre_tokenizer":null,"decoder":{{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"{}"}},"content":" "}},)"
      R"({{"type":"ByteFallback"}},{{"type":"Fuse"}}{}]}},)",
      kMark, prefix ? R"(,{"type":"Strip","content":" ","start":1,"stop":0})" : "");
}

void Writer::add_post_processor(bool bos, bool eos) {
  if (!bos && !eos) {
    out_ += R"("post_processor":null,)";
    return;
  }
  std::string steps, specials;
  // TemplateProcessing: what "single" names must stand in "special_tokens", once, also where BOS and EOS are one token.
  const auto special = [&](int32_t id) {
    std::string text;
    append(text, tables_.tokens[static_cast<std::size_t>(id)]);
    steps += fmt::format(R"({}{{"SpecialToken":{{"id":{},"type_id":0}}}})", steps.empty() ? "" : ",", text);
    const std::string entry = fmt::format(R"({0}:{{"id":{0},"ids":[{1}],"tokens":[{0}]}})", text, id);
    if (specials.find(entry) == std::string::npos) specials += (specials.empty() ? "" : ",") + entry;
  };
  if (bos) special(*tables_.bos);
  steps += fmt::format(R"({}{{"Sequence":{{"id":"A","type_id":0}}}})", steps.empty() ? "" : ",");
  if (eos) special(*tables_.eos);
  out_ += fmt::format(R"("post_processor":{{"type":"TemplateProcessing","single":[{}],"special_tokens":{{{}}}}},)",
                      steps, specials);
}

std::string Writer::config() const {
  std::string out = "{";
  const auto add = [&](std::string_view name, const std::optional<int32_t>& id) {
    if (!id) return;
    out += fmt::format(R"({}"{}":)", out.size() > 1 ? "," : "", name);
    append(out, tables_.tokens[static_cast<std::size_t>(*id)]);
  };
  add("bos_token", tables_.bos);
  add("eos_token", tables_.eos);
  add("pad_token", tables_.pad);
  add("unk_token", tables_.unk);
  if (!tables_.chat_template.empty()) {
    out += out.size() > 1 ? R"(,"chat_template":)" : R"("chat_template":)";
    append(out, tables_.chat_template);
  }
  if (tables_.add_bos) out += fmt::format(R"({}"add_bos_token":{})", out.size() > 1 ? "," : "", *tables_.add_bos);
  return out + "}";
}

Result<TokenizerJson> Writer::run() {
  RETURN_IF_ERROR(check(tables_));
  const PreTokenizerRules* rules = find_pre_tokenizer(tables_.pre);
  if (!llama() && rules == nullptr) {
    return error(StatusCode::kUnsupported, "pre is \"{}\"; wanted one of {}", tables_.pre.substr(0, 40),
                 known_pre_tokenizers());
  }
  // llama.cpp's defaults for files without the field: SentencePiece adds BOS, byte-level BPE where its pre-tokenizer's
  // models do.
  const bool bos = tables_.add_bos.value_or(llama() || rules->add_bos) && tables_.bos.has_value();
  const bool eos = tables_.add_eos.value_or(false) && tables_.eos.has_value();
  add_vocab();
  RETURN_IF_ERROR(add_merges());
  out_ = "{";
  add_added();
  add_components(rules);
  add_post_processor(bos, eos);
  std::string unk = "null";
  // check() has refused tables of this kind without an unknown token.
  if (llama()) append(unk = "", tables_.tokens[static_cast<std::size_t>(*tables_.unk)]);
  out_ += fmt::format(R"("model":{{"type":"BPE","unk_token":{},"fuse_unk":{},"byte_fallback":{},"ignore_merges":{},)",
                      unk, llama(), llama(), !llama() && rules->ignore_merges);
  out_ += R"("vocab":{)" + vocab_ + R"(},"merges":[)" + merges_ + "]}}";
  return TokenizerJson{std::move(out_), config()};
}

}  // namespace

Result<std::vector<std::pair<std::string_view, std::string_view>>> merges_of_scores(const TokenizerTables& tables,
                                                                                    std::size_t most) {
  struct Merge {
    std::string_view left, right;
    float score;
    std::size_t left_id, right_id;
  };
  std::unordered_map<std::string_view, std::size_t> ids;
  ids.reserve(tables.tokens.size());
  // Control, byte, unknown and unused tokens are never the result of a merge, nor a half of one.
  const auto takes_part = [&](std::size_t id) {
    const TokenKind kind = kind_of(tables, id);
    return kind == TokenKind::kNormal || kind == TokenKind::kUserDefined;
  };
  for (std::size_t id = 0; id < tables.tokens.size(); ++id) {
    if (takes_part(id)) ids.emplace(tables.tokens[id], id);
  }
  std::vector<Merge> merges;
  for (std::size_t id = 0; id < tables.tokens.size(); ++id) {
    if (!takes_part(id)) continue;
    const std::string_view token = tables.tokens[id];
    const std::size_t first = merges.size();
    // Splits inside a character are left out: no token of this kind is half a character.
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      if (utf8_is_continuation(token[cut])) continue;
      const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      if (merges.size() == most) {
        return error(StatusCode::kTooLarge, "the tokens have over {} splits into two others; wanted at most so many",
                     most);
      }
      merges.push_back({left->first, right->first, tables.scores[id], left->second, right->second});
    }
    // Two sorts, as by the converter of the published files: the splits of one token by the ids of their halves, then
    // all by score. The second one is stable, so that equal scores keep the sequence of their tokens.
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(), [](const Merge& a, const Merge& b) {
      return std::tie(a.left_id, a.right_id) < std::tie(b.left_id, b.right_id);
    });
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.score > b.score; });
  std::vector<std::pair<std::string_view, std::string_view>> out;
  out.reserve(merges.size());
  for (const Merge& merge : merges) out.emplace_back(merge.left, merge.right);
  return out;
}

Result<TokenizerJson> tokenizer_json_of(const TokenizerTables& tables) { return Writer(tables).run(); }

Result<std::shared_ptr<const Tokenizer>> tokenizer_from_tables(const TokenizerTables& tables) {
  ASSIGN_OR_RETURN(const TokenizerJson json, tokenizer_json_of(tables));
  return Tokenizer::from_json(json.tokenizer, json.config);
}

}  // namespace millrace
