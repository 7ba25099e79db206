#include "text/normalizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "text/component_json.h"

namespace millrace {
namespace {

// The invariant of MarkedText: no flags, or one for each byte.
bool is_consistent(const MarkedText& text) { return !text.marked() || text.untrusted.size() == text.bytes.size(); }

// What replaces bytes of which one is untrusted is untrusted: else a client could forge a control token of normalized
// text by writing what the normalizer turns into it, such as full-width brackets for NFKC.
bool any_untrusted(const MarkedText& text, size_t begin, size_t end) {
  return text.marked() &&
         std::any_of(text.untrusted.begin() + static_cast<ptrdiff_t>(begin),
                     text.untrusted.begin() + static_cast<ptrdiff_t>(end), [](uint8_t flag) { return flag != 0; });
}

void append_slice(MarkedText& out, const MarkedText& from, size_t begin, size_t end) {
  CHECK(begin <= end && end <= from.bytes.size());
  out.bytes.append(from.bytes, begin, end - begin);
  if (from.marked()) {
    out.untrusted.insert(out.untrusted.end(), from.untrusted.begin() + static_cast<ptrdiff_t>(begin),
                         from.untrusted.begin() + static_cast<ptrdiff_t>(end));
  }
}

// As Rust's trim: whole characters of Unicode's White_Space. From the right utf8_before() steps over the continuation
// bytes, which is safe because encode() has checked that the text is UTF-8.
void strip(MarkedText& text, bool left, bool right) {
  size_t begin = 0, end = text.bytes.size();
  while (left && begin < end) {
    const CodePoint c = utf8_at(text.bytes, begin);
    if (!is_space(c.value)) break;
    begin += c.size_bytes;
  }
  while (right && end > begin) {
    const size_t before = utf8_before(text.bytes, end);
    if (!is_space(utf8_at(text.bytes, before).value)) break;
    end = before;
  }
  // Few texts have white space at an end, and this saves the copy of all others.
  if (begin == 0 && end == text.bytes.size()) return;
  MarkedText out;
  append_slice(out, text, begin, end);
  text = std::move(out);
}

template <typename Emit>
// For the steps that look at each character by itself. A character's flag is that of its first byte: its bytes come
// from one string, which is UTF-8 by itself, so no segment ends inside a character.
void map_characters(MarkedText& text, Emit emit) {
  MarkedText out;
  std::string mapped;
  for (size_t at = 0; at < text.bytes.size();) {
    const CodePoint c = utf8_at(text.bytes, at);
    mapped.clear();
    emit(mapped, c.value);
    out.append(mapped, text.marked() && text.untrusted[at] != 0, text.marked());
    at += c.size_bytes;
  }
  text = std::move(out);
}

}  // namespace

Result<NormalizerChain> NormalizerChain::parse(const Json& json) {
  NormalizerChain chain;
  if (!json.is_null()) RETURN_IF_ERROR(chain.parse_into(json, 0));
  return chain;
}

Status NormalizerChain::parse_into(const Json& json, int depth) {
  ASSIGN_OR_RETURN(const std::string type, component_type(json));
  if (depth > kMaxComponentDepth) return invalid_argument("Sequences are nested deeper than {}", kMaxComponentDepth);
  if (steps_.size() >= kMaxComponents) return invalid_argument("there are over {} components", kMaxComponents);
  // Sequences are flattened: the steps are applied in the sequence in which a walk of the tree meets them. The limit of
  // depth bounds this recursion, for the file may come from anywhere.
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* list, required_array(json, "normalizers"));
    for (const Json& item : *list) RETURN_IF_ERROR(parse_into(item, depth + 1));
    return ok_status();
  }
  return parse_step(type, json).with_prefix(type);
}

Status NormalizerChain::parse_step(const std::string& type, const Json& json) {
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    // The K of NFKC and NFKD: compatibility decompositions. The last letter is C where the result is composed again.
    const bool compatible = type[2] == 'K';
    const bool composed = type.back() == 'C';
    steps_.emplace_back(compatible ? (composed ? NormalForm::kNfkc : NormalForm::kNfkd)
                                   : (composed ? NormalForm::kNfc : NormalForm::kNfd));
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(const PatternText pattern, required_pattern(json, "pattern"));
    ASSIGN_OR_RETURN(std::string content, required_string(json, "content"));
    if (content.size() > kMaxReplacementBytes) {
      return error(StatusCode::kTooLarge, "content has {} bytes; wanted at most {}", content.size(),
                   kMaxReplacementBytes);
    }
    // A plain string is searched for with find(), which is faster. An empty one goes through the expression, which
    // matches between all characters.
    ASSIGN_OR_RETURN(Regex regex, pattern.is_regex ? Regex::compile(pattern.text) : Regex::literal(pattern.text));
    steps_.emplace_back(Replace{std::move(regex), pattern.is_regex ? std::string() : pattern.text, std::move(content)});
  } else if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string content, required_string(json, "prepend"));
    steps_.emplace_back(Prepend{std::move(content)});
  } else if (type == "Strip") {
    ASSIGN_OR_RETURN(const bool left, required_bool(json, "strip_left"));
    ASSIGN_OR_RETURN(const bool right, required_bool(json, "strip_right"));
    steps_.emplace_back(Strip{left, right});
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "StripAccents") {
    steps_.emplace_back(StripAccents{});
  } else {
    return error(StatusCode::kUnsupported,
                 "this type is not known; wanted NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Replace, Prepend, "
                 "Strip or Sequence");
  }
  return ok_status();
}

Status NormalizerChain::replace(const Replace& step, MarkedText& text, RegexScratch& scratch) {
  MarkedText out;
  out.bytes.reserve(text.bytes.size());
  size_t done = 0;
  // `done` is the end of what is copied. Matches come from left to right and do not overlap, so each byte of the text
  // is copied once or replaced once.
  const auto put = [&](size_t begin, size_t end) {
    CHECK(done <= begin && begin <= end);
    append_slice(out, text, done, begin);
    out.append(step.content, any_untrusted(text, begin, end), text.marked());
    done = end;
  };
  if (!step.literal.empty()) {
    const size_t size = step.literal.size();
    for (size_t at = 0; (at = text.bytes.find(step.literal, done)) != std::string::npos;) put(at, at + size);
  } else {
    RegexMatches matches(step.pattern, scratch, text.bytes);
    size_t begin = 0, end = 0;
    while (true) {
      ASSIGN_OR_RETURN(const bool found, matches.next(begin, end));
      if (!found) break;
      put(begin, end);
    }
  }
  append_slice(out, text, done, text.bytes.size());
  text = std::move(out);
  return ok_status();
}

// Each step works on the complete text before the next one begins, as Hugging Face's NormalizedString does. The number
// of bytes changes; the flags change with it, so that the search for control tokens behind can ask for the origin of
// each byte.
Status NormalizerChain::apply(MarkedText& text, RegexScratch& scratch) const {
  CHECK(is_consistent(text));
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<NormalForm>(&step)) {
      text = unicode_normalize(text, *form);
    } else if (const auto* replacing = std::get_if<Replace>(&step)) {
      RETURN_IF_ERROR(replace(*replacing, text, scratch));
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      // As in Hugging Face: nothing is put before an empty text.
      if (text.bytes.empty()) continue;
      text.bytes.insert(0, prepend->content);
      if (text.marked()) text.untrusted.insert(text.untrusted.begin(), prepend->content.size(), 0);
    } else if (const auto* strip_ends = std::get_if<Strip>(&step)) {
      strip(text, strip_ends->left, strip_ends->right);
    } else if (std::holds_alternative<Lowercase>(step)) {
      map_characters(text, [](std::string& out, char32_t c) { append_lowercase(out, c); });
    } else {
      map_characters(text, [](std::string& out, char32_t c) {
        if (!is_mark(c)) utf8_append(out, c);
      });
    }
  }
  CHECK(is_consistent(text));
  return ok_status();
}

}  // namespace millrace
