#include "text/decoder.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "text/byte_level.h"
#include "text/component_json.h"
#include "text/normalizer.h"

namespace millrace {
namespace {

// Copies that Strip may take at one end. Known files have 1; the state may hold so many at the end of a stream.
constexpr size_t kMaxStrip = 1024;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  // Most tokens have nothing to replace and are not copied.
  size_t at = text.find(from);
  if (at == std::string::npos) return;
  std::string out;
  size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  out.append(text, done);
  text = std::move(out);
}

// The byte of "<0xE4>", or -1.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  if (token[3] == '+') token.remove_prefix(1);  // the reference's number parser takes a sign
  for (const char c : token.substr(3, token.size() - 4)) {
    const char lower = static_cast<char>(c | 0x20);
    if (c >= '0' && c <= '9') {
      value = value * 16 + (c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + (lower - 'a' + 10);
    } else {
      return -1;
    }
  }
  return value;
}

// Without up to `limit` copies of `content` at the start of `text`; gives their number.
size_t strip_start(std::string& text, std::string_view content, size_t limit) {
  size_t cut = 0, count = 0;
  while (count < limit && std::string_view(text).substr(cut).starts_with(content)) {
    cut += content.size();
    ++count;
  }
  text.erase(0, cut);
  return count;
}

void strip_stop(std::string& text, std::string_view content, size_t limit) {
  for (size_t count = 0; count < limit && text.ends_with(content); ++count) text.resize(text.size() - content.size());
}

}  // namespace

Result<DecoderChain> DecoderChain::parse(const Json& json) {
  DecoderChain chain;
  // Beyond any step: nothing is fused yet.
  chain.fused_from_ = kMaxComponents + 1;
  // As in the reference: without a decoder the tokens' texts are joined by spaces.
  if (json.is_null()) {
    chain.join_with_spaces_ = true;
  } else {
    RETURN_IF_ERROR(chain.parse_into(json, 0));
  }
  return chain;
}

Status DecoderChain::parse_into(const Json& json, int depth) {
  ASSIGN_OR_RETURN(const std::string type, component_type(json));
  if (depth > kMaxComponentDepth) return invalid_argument("Sequences are nested deeper than {}", kMaxComponentDepth);
  if (steps_.size() >= kMaxComponents) return invalid_argument("there are over {} components", kMaxComponents);
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* list, required_array(json, "decoders"));
    for (const Json& item : *list) RETURN_IF_ERROR(parse_into(item, depth + 1));
    return ok_status();
  }
  return parse_step(type, json).with_prefix(type);
}

Status DecoderChain::parse_step(const std::string& type, const Json& json) {
  const bool fused = steps_.size() >= fused_from_;
  if (type == "ByteLevel" || type == "ByteFallback") {
    // The reference would then see one long token. These two map tokens as a whole, so nothing could be streamed before
    // the last one.
    if (fused) return error(StatusCode::kUnsupported, "it comes after a step that joins the tokens; wanted it before");
    if (type == "ByteLevel") {
      steps_.emplace_back(ByteLevel{});
      fused_from_ = steps_.size();
    } else {
      steps_.emplace_back(ByteFallback{});
    }
  } else if (type == "Fuse") {
    steps_.emplace_back(Fuse{});
    fused_from_ = std::min(fused_from_, steps_.size());
  } else if (type == "Replace") {
    ASSIGN_OR_RETURN(const PatternText pattern, required_pattern(json, "pattern"));
    ASSIGN_OR_RETURN(std::string content, required_string(json, "content"));
    if (pattern.is_regex) return error(StatusCode::kUnsupported, "pattern is a Regex; this decoder takes a String");
    if (pattern.text.empty()) return invalid_argument("pattern is empty; wanted at least one character");
    // A stream cuts the long token at characters. A pattern of one character never lies across a cut, a longer one may.
    if (fused && utf8_classify(pattern.text).size_bytes != pattern.text.size()) {
      return error(StatusCode::kUnsupported, "it replaces \"{}\" after the tokens are joined; wanted one character",
                   pattern.text);
    }
    if (content.size() > kMaxReplacementBytes) {
      return error(StatusCode::kTooLarge, "content has {} bytes; wanted at most {}", content.size(),
                   kMaxReplacementBytes);
    }
    steps_.emplace_back(Replace{pattern.text, std::move(content)});
  } else if (type == "Strip") {
    ASSIGN_OR_RETURN(std::string content, required_character(json, "content"));
    int64_t start = 0, stop = 0;
    RETURN_IF_ERROR(json_read(json, "start", start));
    RETURN_IF_ERROR(json_read(json, "stop", stop));
    if (start < 0 || stop < 0 || start > static_cast<int64_t>(kMaxStrip) || stop > static_cast<int64_t>(kMaxStrip)) {
      return invalid_argument("start and stop are {} and {}; wanted 0..{}", start, stop, kMaxStrip);
    }
    steps_.emplace_back(Strip{std::move(content), static_cast<size_t>(start), static_cast<size_t>(stop)});
  } else if (type == "Metaspace") {
    ASSIGN_OR_RETURN(std::string replacement, required_character(json, "replacement"));
    std::string scheme = "always";
    bool add_prefix_space = true;
    RETURN_IF_ERROR(json_read(json, "prepend_scheme", scheme));
    RETURN_IF_ERROR(json_read(json, "add_prefix_space", add_prefix_space));
    steps_.emplace_back(Metaspace{std::move(replacement), add_prefix_space && scheme != "never"});
  } else {
    return error(StatusCode::kUnsupported,
                 "this type is not known; wanted ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace or Sequence");
  }
  return ok_status();
}

// Fuse and Strip are left out: they depend on a token's position, and this is of the token alone.
std::string DecoderChain::token_bytes(std::string_view token) const {
  std::string text(token);
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) {
      // Raw bytes, perhaps no text, so no later step may look at them.
      if (std::optional<std::string> bytes = byte_level_bytes(text)) return *bytes;
    } else if (std::holds_alternative<ByteFallback>(step)) {
      if (const int byte = fallback_byte(text); byte >= 0) return std::string(1, static_cast<char>(byte));
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      replace_all(text, replace->from, replace->to);
    } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
      replace_all(text, metaspace->replacement, " ");
    }
  }
  return text;
}

DecoderState::DecoderState(const DecoderChain& chain, bool continues_text)
    : chain_(&chain),
      // `count` is read by Metaspace (not the first token any more), `done` by Strip (nothing is stripped at the
      // start).
      memory_(chain.steps_.size(), Memory{.count = continues_text ? 1u : 0u, .done = continues_text}),
      first_(!continues_text) {}

void DecoderState::push(std::string_view token, std::string& out) {
  if (chain_->join_with_spaces_ && !first_) out += ' ';
  first_ = false;
  decode_step(0, std::string(token), out);
}

void DecoderState::finish(std::string& out) {
  // In the chain's sequence: what one step still held may be held again by a later one.
  for (size_t step = 0; step < chain_->steps_.size(); ++step) settle(step, out);
}

// As deep as there are steps (kMaxComponents).
void DecoderState::decode_step(size_t step, std::string token, std::string& out) {
  CHECK(step <= chain_->steps_.size());
  if (step == chain_->steps_.size()) {
    out += token;
    return;
  }
  std::visit([&](const auto& kind) { decode_step(step, kind, std::move(token), out); }, chain_->steps_[step]);
}

void DecoderState::decode_step(size_t step, const DecoderChain::ByteLevel&, std::string token, std::string& out) {
  std::string& held = memory_[step].held;
  const std::optional<std::string> bytes = byte_level_bytes(token);
  // A token with a letter outside the byte-level alphabet stands for its own text, as in the reference.
  held += bytes ? *bytes : token;
  std::string ready;
  size_t at = 0;
  while (at < held.size()) {
    const Utf8Unit unit = utf8_classify(std::string_view(held).substr(at));
    // A character's first bytes may come with one token and the rest with the next. A byte that can never become one is
    // replaced now, so at most 3 bytes are held.
    if (unit.state == Utf8State::kPartial) break;
    ready.append(unit.state == Utf8State::kComplete ? std::string_view(held).substr(at, unit.size_bytes)
                                                    : kReplacementCharacter);
    at += unit.size_bytes;
  }
  held.erase(0, at);
  if (!ready.empty()) decode_step(step + 1, std::move(ready), out);
}

// The reference decodes a run of byte tokens together: if all of it is UTF-8 it is text, else each byte becomes one
// U+FFFD.
void DecoderState::decode_step(size_t step, const DecoderChain::ByteFallback&, std::string token, std::string& out) {
  if (const int byte = fallback_byte(token); byte >= 0) {
    // Nothing of a run may go out before its end: one bad byte makes all of it replacement characters. Only the tokens
    // of a request bound its length.
    memory_[step].held += static_cast<char>(byte);
    return;
  }
  settle(step, out);
  decode_step(step + 1, std::move(token), out);
}

void DecoderState::decode_step(size_t step, const DecoderChain::Fuse&, std::string token, std::string& out) {
  decode_step(step + 1, std::move(token), out);
}

void DecoderState::decode_step(size_t step, const DecoderChain::Replace& replace, std::string token, std::string& out) {
  replace_all(token, replace.from, replace.to);
  decode_step(step + 1, std::move(token), out);
}

void DecoderState::decode_step(size_t step, const DecoderChain::Metaspace& metaspace, std::string token,
                               std::string& out) {
  Memory& memory = memory_[step];
  // The reference drops the replacement character in the first token. After a Fuse everything is the first token.
  const bool first = memory.count == 0 || step >= chain_->fused_from_;
  memory.count = 1;
  replace_all(token, metaspace.replacement, first && metaspace.drops_first ? "" : " ");
  decode_step(step + 1, std::move(token), out);
}

void DecoderState::decode_step(size_t step, const DecoderChain::Strip& strip, std::string token, std::string& out) {
  if (step >= chain_->fused_from_) {
    strip_fused(step, strip, std::move(token), out);
    return;
  }
  // Before a Fuse the reference strips each token by itself.
  strip_start(token, strip.content, strip.start);
  strip_stop(token, strip.content, strip.stop);
  decode_step(step + 1, std::move(token), out);
}

// At the start, `count` copies of the content are gone already; at the end, up to `stop` copies are held until
// something else follows.
void DecoderState::strip_fused(size_t step, const DecoderChain::Strip& strip, std::string text, std::string& out) {
  Memory& memory = memory_[step];
  if (!memory.done) {
    CHECK(memory.count <= strip.start);
    memory.count += strip_start(text, strip.content, strip.start - memory.count);
    // Only content so far: the next text may begin with more of it.
    if (text.empty()) return;
    memory.done = true;
  }
  // What was held for the end is no end after all: it stands before this text and may be stripped with it.
  text.insert(0, memory.held);
  memory.held.clear();
  size_t end = text.size();
  for (size_t i = 0; i < strip.stop && std::string_view(text).substr(0, end).ends_with(strip.content); ++i) {
    end -= strip.content.size();
  }
  // At most strip.stop copies are held: the ones before them cannot be stripped later, so they are emitted now.
  memory.held = text.substr(end);
  text.resize(end);
  if (!text.empty()) decode_step(step + 1, std::move(text), out);
}

void DecoderState::settle(size_t step, std::string& out) {
  Memory& memory = memory_[step];
  if (memory.held.empty()) return;
  const std::string held = std::move(memory.held);
  memory.held.clear();
  const DecoderChain::Step& kind = chain_->steps_[step];
  if (std::holds_alternative<DecoderChain::ByteLevel>(kind)) {
    decode_step(step + 1, utf8_lossy(held), out);
  } else if (std::holds_alternative<DecoderChain::ByteFallback>(kind)) {
    std::string text = held;
    if (utf8_find_invalid(held) != std::string_view::npos) {
      text.clear();
      for (size_t i = 0; i < held.size(); ++i) text.append(kReplacementCharacter);
    }
    decode_step(step + 1, std::move(text), out);
  }
  // What Strip holds at the end is what it strips.
}

}  // namespace millrace
