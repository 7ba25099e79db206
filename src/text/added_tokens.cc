#include "text/added_tokens.h"

#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "text/component_json.h"
#include "text/tokenizer.h"
#include "text/tools/dialect.h"
#include "text/unicode.h"

namespace millrace {
namespace {

// Some published files do not mark tokens of this form as special. Here the form alone makes a token one that
// untrusted text cannot spell.
bool looks_like_control(std::string_view content) {
  constexpr std::string_view kFullWidthBar = "\xEF\xBD\x9C";  // ｜, as in DeepSeek's <｜User｜>
  for (const std::string_view bar : {std::string_view("|"), kFullWidthBar}) {
    const std::string open = std::string("<").append(bar);
    const std::string close = std::string(bar).append(">");
    if (content.size() >= open.size() + close.size() && content.starts_with(open) && content.ends_with(close))
      return true;
  }
  return false;
}

}  // namespace

Result<AddedToken> parse_added_token(const Json& json, std::optional<int64_t> id) {
  if (!json.is_object()) return invalid_argument("it is a {}; wanted an object", json_type_name(json));
  AddedToken token;
  ASSIGN_OR_RETURN(token.content, required_string(json, "content"));
  if (token.content.empty()) return invalid_argument("content is empty; wanted at least one character");
  if (token.content.size() > kMaxTokenBytes) {
    return error(StatusCode::kTooLarge, "content has {} bytes; wanted at most {}", token.content.size(),
                 kMaxTokenBytes);
  }
  int64_t number = id.value_or(-1);
  if (!id && json_find(json, "id") == nullptr) return invalid_argument("id is missing; wanted an integer");
  if (!id) RETURN_IF_ERROR(json_read(json, "id", number));
  if (number < 0 || number >= kMaxVocab) return invalid_argument("id is {}; wanted 0..{}", number, kMaxVocab - 1);
  token.id = static_cast<int32_t>(number);
  RETURN_IF_ERROR(json_read(json, "single_word", token.single_word));
  RETURN_IF_ERROR(json_read(json, "lstrip", token.lstrip));
  RETURN_IF_ERROR(json_read(json, "rstrip", token.rstrip));
  RETURN_IF_ERROR(json_read(json, "special", token.special));
  // Hugging Face's default where the field is missing: special tokens are looked for in the input as it is.
  token.normalized = !token.special;
  RETURN_IF_ERROR(json_read(json, "normalized", token.normalized));
  token.control = token.special || looks_like_control(token.content) || is_chat_marker(token.content);
  return token;
}

// The trie keeps children as a list of siblings: a node has one or two, but for the root, and find() asks first_bytes_
// before it comes here.
uint32_t AddedTokenSet::child(uint32_t node, char byte) const {
  uint32_t at = nodes_[node].first_child;
  while (at != kNoNode && nodes_[at].byte != byte) at = nodes_[at].next_sibling;
  return at;
}

// Where the normalizer makes the contents of two tokens equal, both come here, and the later one is found.
void AddedTokenSet::add(AddedToken token) {
  CHECK(!token.content.empty());
  CHECK(token.id >= 0);
  uint32_t node = 0;
  for (const char byte : token.content) {
    uint32_t next = child(node, byte);
    if (next == kNoNode) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back(Node{.next_sibling = nodes_[node].first_child, .byte = byte});
      nodes_[node].first_child = next;
    }
    node = next;
  }
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  first_bytes_[static_cast<unsigned char>(token.content[0])] = true;
  has_control_ = has_control_ || token.control;
  tokens_.push_back(std::move(token));
}

// `allowed` is asked on the way down, not for the longest match alone: where a control token is refused in untrusted
// text, an ordinary token that begins alike is still found.
const AddedToken* AddedTokenSet::longest_at(std::string_view text, size_t at, const Allowed& allowed) const {
  const AddedToken* best = nullptr;
  uint32_t node = 0;
  for (size_t end = at; end < text.size();) {
    node = child(node, text[end]);
    if (node == kNoNode) break;
    ++end;
    if (nodes_[node].token < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(nodes_[node].token)];
    if (allowed(token, at, end)) best = &token;
  }
  return best;
}

// As Hugging Face's ends_with_word and starts_with_word: \w of Rust's regex beside the match, whatever the token's own
// characters are.
bool AddedTokenSet::stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool before = begin > 0 && is_word(utf8_at(text, utf8_before(text, begin)).value);
  const bool after = end < text.size() && is_word(utf8_at(text, end).value);
  return !before && !after;
}

// The behaviour of AddedVocabulary::find_matches in Hugging Face's tokenizers: leftmost, then longest, not overlapping.
bool AddedTokenSet::find(std::string_view text, size_t from, const Allowed& allowed, Match& match) const {
  if (tokens_.empty()) return false;
  for (size_t at = from; at < text.size();) {
    // Nearly every byte of a text ends here; a continuation byte of UTF-8 begins no token's content.
    if (!first_bytes_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* token = longest_at(text, at, allowed);
    if (token == nullptr) {
      ++at;
      continue;
    }
    const size_t end = at + token->content.size();
    // The reference drops the match after its search has passed it, so a shorter token inside it is not found either.
    if (token->single_word && !stands_alone(text, at, end)) {
      at = end;
      continue;
    }
    match = {token, at, end};
    // Not beyond `from`: the white space before it may belong to the match before, which took it with rstrip.
    while (token->lstrip && match.begin > from) {
      const size_t before = utf8_before(text, match.begin);
      if (!is_space(utf8_at(text, before).value)) break;
      match.begin = before;
    }
    while (token->rstrip && match.end < text.size()) {
      const CodePoint c = utf8_at(text, match.end);
      if (!is_space(c.value)) break;
      match.end += c.size_bytes;
    }
    return true;
  }
  return false;
}

}  // namespace millrace
