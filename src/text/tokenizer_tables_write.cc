// tokenizer.json to tables. What the tables cannot hold is refused, and what they hold is compared with the file: a
// GGUF whose ids differ from the folder's would be worse than none.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/json.h"
#include "base/log.h"
#include "text/tokenizer_tables.h"
#include "text/tools/dialect.h"

namespace millrace {
namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

Status cannot(std::string_view what) {
  return error(StatusCode::kUnsupported, "tokenizer.json: {}; wanted what a GGUF file can hold", what);
}

const Json& member(const Json& json, const char* name) {
  static const Json kNull;
  const Json* found = json.is_object() ? json_find(json, name) : nullptr;
  return found != nullptr ? *found : kNull;
}

class Reader {
 public:
  Reader(const Json& json, const Tokenizer& tokenizer, int64_t rows)
      : json_(json), tokenizer_(tokenizer), rows_(rows) {}

  Result<TokenizerTables> run();

 private:
  Status read_tokens();
  Status check_added() const;
  Result<Merges> read_merges() const;
  Status read_byte_level();
  Status read_sentencepiece();
  Status read_prefix();
  Status check_decoder(const Json& normalizer) const;

  const Json& json_;
  const Tokenizer& tokenizer_;
  int64_t rows_;
  TokenizerTables out_;
};

Status Reader::read_tokens() {
  if (tokenizer_.vocab_size() > rows_) {
    return cannot(fmt::format("has ids up to {} for {} rows of the embedding", tokenizer_.vocab_size() - 1, rows_));
  }
  for (int32_t id = 0; id < rows_; ++id) {
    const bool available = tokenizer_.has_token(id);
    out_.tokens.push_back(available ? std::string(tokenizer_.token_text(id)) : fmt::format("[PAD{}]", id));
    // Decoding skips what a GGUF file calls control. <tool_call> is not skipped.
    const bool shown = is_chat_marker(tokenizer_.token_text(id)) && !tokenizer_.is_special(id);
    const TokenKind kind = !available                            ? TokenKind::kUnused
                           : tokenizer_.is_control(id) && !shown ? TokenKind::kControl
                           : tokenizer_.is_added(id)             ? TokenKind::kUserDefined
                                                                 : TokenKind::kNormal;
    out_.kinds.push_back(static_cast<int32_t>(kind));
  }
  return ok_status();
}

Status Reader::check_added() const {
  int in_normalized = 0;
  const Json& added = member(json_, "added_tokens");
  for (const Json& token : added.is_array() ? added : Json::array()) {
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      if (member(token, flag) == true) return cannot(fmt::format("an added token is {}", flag));
    }
    in_normalized += member(token, "normalized") == true ? 1 : 0;
  }
  if (in_normalized > 0) {
    LOG_WARNING("{} added tokens are looked for in normalized text; from a GGUF file they are looked for as written",
                in_normalized);
  }
  return ok_status();
}

Result<Merges> Reader::read_merges() const {
  Merges out;
  const Json& merges = member(member(json_, "model"), "merges");
  for (const Json& merge : merges.is_array() ? merges : Json::array()) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      out.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : std::string();
    const std::size_t space = text.find(' ', 1);
    if (space == std::string::npos) return cannot("a merge is no pair of tokens");
    out.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return out;
}

Status Reader::read_byte_level() {
  const Json& model = member(json_, "model");
  out_.model = "gpt2";
  const PreTokenizerRules* rules =
      match_pre_tokenizer(member(json_, "pre_tokenizer").dump(), member(json_, "normalizer").dump(),
                          member(model, "ignore_merges") == true);
  if (rules == nullptr) {
    return cannot(
        fmt::format("pre-tokenizer, normalizer and ignore_merges together are none of {}", known_pre_tokenizers()));
  }
  out_.pre = rules->name;
  if (member(member(json_, "decoder"), "type") != "ByteLevel") return cannot("the decoder is not ByteLevel");
  if (member(model, "byte_fallback") == true || !member(model, "unk_token").is_null()) {
    return cannot("byte_fallback or unk_token in a byte-level model");
  }
  ASSIGN_OR_RETURN(const Merges merges, read_merges());
  for (const auto& [left, right] : merges) {
    if (left.find(' ') != std::string::npos || right.find(' ') != std::string::npos) {
      return cannot("a merge has a space in a token");
    }
    out_.merges.push_back(left + " " + right);
  }
  return ok_status();
}

Status Reader::check_decoder(const Json& normalizer) const {
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const Json prepend = {{"type", "Prepend"}, {"prepend", "\u2581"}};
  const Json prefixed = {{"type", "Sequence"}, {"normalizers", {prepend, replace}}};
  const Json plain = {{"type", "Sequence"}, {"normalizers", {replace}}};
  const Json back = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  Json decoders = Json::array({back, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (normalizer == prefixed) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  if (normalizer != prefixed && normalizer != plain && normalizer != replace) {
    return cannot("the normalizer is not that of SentencePiece");
  }
  const Json wanted = {{"type", "Sequence"}, {"decoders", decoders}};
  return member(json_, "decoder") == wanted ? ok_status() : cannot("the decoder is not that of SentencePiece");
}

// The file has merges and no scores: a token's score is minus the rank of the first merge that makes it. The merges
// that follow from these scores must be the file's.
Status Reader::read_sentencepiece() {
  const Json& model = member(json_, "model");
  out_.model = "llama";
  out_.pre = "default";
  const Json& normalizer = member(json_, "normalizer");
  RETURN_IF_ERROR(check_decoder(normalizer));
  out_.add_space_prefix = normalizer.dump().find("Prepend") != std::string::npos;
  if (!member(json_, "pre_tokenizer").is_null()) return cannot("SentencePiece with a pre-tokenizer");
  if (member(model, "byte_fallback") != true || member(model, "fuse_unk") != true ||
      member(model, "ignore_merges") == true) {
    return cannot("SentencePiece without byte_fallback and fuse_unk, or with ignore_merges");
  }
  const Json& unk = member(model, "unk_token");
  out_.unk = unk.is_string() ? tokenizer_.id_of(unk.get<std::string>()) : std::nullopt;
  if (!out_.unk) return cannot("SentencePiece without unk_token");
  out_.kinds[static_cast<std::size_t>(*out_.unk)] = static_cast<int32_t>(TokenKind::kUnknown);
  for (std::size_t id = 0; id < out_.tokens.size(); ++id) {
    const std::string& text = out_.tokens[id];
    const bool byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>');
    if (byte && out_.kinds[id] == static_cast<int32_t>(TokenKind::kNormal)) {
      out_.kinds[id] = static_cast<int32_t>(TokenKind::kByte);
    }
  }
  ASSIGN_OR_RETURN(const Merges merges, read_merges());
  std::unordered_map<std::string, float> scores;
  for (const auto& [left, right] : merges) scores.emplace(left + right, -static_cast<float>(scores.size()));
  const auto last = -static_cast<float>(scores.size());
  for (std::size_t id = 0; id < out_.tokens.size(); ++id) {
    const auto at = scores.find(out_.tokens[id]);
    const bool normal = out_.kinds[id] == static_cast<int32_t>(TokenKind::kNormal);
    out_.scores.push_back(at != scores.end() ? at->second : normal ? last : 0.0f);
  }
  ASSIGN_OR_RETURN(const auto again, merges_of_scores(out_));
  std::size_t same = 0;
  while (same < std::min(merges.size(), again.size()) && merges[same].first == again[same].first &&
         merges[same].second == again[same].second) {
    ++same;
  }
  if (same < merges.size() || same < again.size()) {
    const auto merge = [same](const auto& list) {
      return same < list.size() ? fmt::format("'{} {}'", list[same].first, list[same].second) : std::string("none");
    };
    return cannot(fmt::format("its {} merges are not those of a score for each token: merge {} is {}, by scores {}",
                              merges.size(), same, merge(merges), merge(again)));
  }
  return ok_status();
}

// What the post-processor puts around a text: nothing, bos, eos or both.
Status Reader::read_prefix() {
  out_.bos = tokenizer_.bos_id();
  out_.eos = tokenizer_.eos_id();
  out_.pad = tokenizer_.pad_id();
  if (!out_.unk && tokenizer_.unk_id()) out_.unk = tokenizer_.unk_id();
  ASSIGN_OR_RETURN(const std::vector<int32_t> around, tokenizer_.encode("a"));
  ASSIGN_OR_RETURN(const std::vector<int32_t> inside, tokenizer_.encode("a", {.add_special_tokens = false}));
  const auto at = std::search(around.begin(), around.end(), inside.begin(), inside.end());
  if (at == around.end()) return cannot("the post-processor changes the text's own ids");
  const auto before = at - around.begin();
  const auto after = static_cast<std::ptrdiff_t>(around.size() - inside.size()) - before;
  if (before > 1 || after > 1)
    return cannot(fmt::format("the post-processor puts {} ids before and {} after", before, after));
  if (before == 1) out_.bos = around.front();
  if (after == 1 && out_.eos && *out_.eos != around.back())
    return cannot("the post-processor ends with another id than eos");
  if (after == 1) out_.eos = around.back();
  out_.add_bos = before == 1;
  out_.add_eos = after == 1;
  return ok_status();
}

Result<TokenizerTables> Reader::run() {
  RETURN_IF_ERROR(read_tokens());
  RETURN_IF_ERROR(check_added());
  const bool byte_level =
      json_.contains("pre_tokenizer") && member(json_, "pre_tokenizer").dump().find("ByteLevel") != std::string::npos;
  RETURN_IF_ERROR(byte_level ? read_byte_level() : read_sentencepiece());
  RETURN_IF_ERROR(read_prefix());
  out_.chat_template = tokenizer_.chat_template();
  return std::move(out_);
}

}  // namespace

Result<TokenizerTables> tables_of_tokenizer(std::string_view tokenizer_json, std::string_view config_json,
                                            int64_t rows) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::from_json(tokenizer_json, config_json));
  ASSIGN_OR_RETURN(const Json json, parse_json(tokenizer_json));
  try {
    return Reader(json, *tokenizer, rows).run();
  } catch (const std::exception& e) {
    return internal_error("tokenizer.json: {}", e.what());
  }
}

Result<TokenizerTables> load_tokenizer_tables(const std::string& dir, int64_t rows) {
  // The loader has the errors and limits for files; what it has read once can be read again.
  RETURN_IF_ERROR(Tokenizer::load(dir).status());
  const auto read = [&dir](const char* name) {
    std::ifstream file(dir + "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  Result<TokenizerTables> tables = tables_of_tokenizer(read("tokenizer.json"), read("tokenizer_config.json"), rows);
  if (!tables.ok()) return tables.status().with_prefix(dir);
  return tables;
}

}  // namespace millrace
