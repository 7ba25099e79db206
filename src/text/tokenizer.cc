#include "text/tokenizer.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer_impl.h"

namespace millrace {
namespace {

// The stretches of the joined text that came with the request, in order and not touching.
class UntrustedRanges {
 public:
  // Comes in ascending sequence; neighbours become one range, so the search below needs no more than one of them.
  void add(size_t begin, size_t end) {
    if (begin == end) return;
    if (!ranges_.empty() && ranges_.back().end == begin) {
      ranges_.back().end = end;
    } else {
      ranges_.push_back({begin, end});
    }
  }
  bool overlap(size_t begin, size_t end) const {
    // The first range that ends behind `begin`: it overlaps where it begins before `end`, and if it does not, none
    // does.
    const auto at =
        std::upper_bound(ranges_.begin(), ranges_.end(), begin, [](size_t v, const Range& r) { return v < r.end; });
    return at != ranges_.end() && at->begin < end;
  }
  // A flag for each byte of [begin, end), for the normalizer: behind it, offsets of the text mean nothing.
  std::vector<uint8_t> flags(size_t begin, size_t end) const {
    std::vector<uint8_t> out(end - begin);
    for (const Range& range : ranges_) {
      for (size_t i = std::max(begin, range.begin); i < std::min(end, range.end); ++i) out[i - begin] = 1;
    }
    return out;
  }

 private:
  struct Range {
    size_t begin;
    size_t end;
  };
  std::vector<Range> ranges_;
};

}  // namespace

// The sequence is that of AddedVocabulary::extract_and_normalize in Hugging Face's tokenizers, and the result depends
// on it: a token with normalized = false is found even where the normalizer would change its text.
// One encode call: cut out the added tokens, normalize what lies between, cut out those that match normalized text, cut
// the rest into words, and give each word to the BPE model.
class Encoder {
 public:
  Encoder(const AddedTokenSet& plain, const AddedTokenSet& normalized, const NormalizerChain& normalizer,
          const PreTokenizerChain& pre_tokenizer, const BpeModel& bpe, bool parse_special)
      : plain_(plain),
        normalized_(normalized),
        normalizer_(normalizer),
        pre_tokenizer_(pre_tokenizer),
        bpe_(bpe),
        parse_special_(parse_special) {
    // Made once: the pre-tokenizer calls it for each word. What it captures is this object, so an Encoder is never
    // moved.
    word_sink_ = [this](std::string_view word) { bpe_.encode(word, guarded_, bpe_scratch_, *out_); };
  }

  Status run(std::string_view text, const UntrustedRanges& untrusted, std::vector<int32_t>& out) {
    out_ = &out;
    const auto allowed = [&](const AddedToken& token, size_t begin, size_t end) {
      return !token.control || (parse_special_ && !untrusted.overlap(begin, end));
    };
    AddedTokenSet::Match match;
    for (size_t at = 0; at < text.size();) {
      // A refused control token is no match, so its bytes stay in the section, and the words below spell them.
      const bool found = plain_.find(text, at, allowed, match);
      const size_t end = found ? match.begin : text.size();
      if (end > at) RETURN_IF_ERROR(encode_part(text, at, end, untrusted));
      if (!found) break;
      out.push_back(match.token->id);
      at = match.end;
    }
    return ok_status();
  }

 private:
  Status encode_part(std::string_view text, size_t begin, size_t end, const UntrustedRanges& untrusted) {
    // One flag for the complete section: a word may lie across a border between segments, and no control id may come
    // out of one of which a part is untrusted. BPE alone could make one, since the vocabulary may have the control
    // tokens' texts too.
    guarded_ = !parse_special_ || untrusted.overlap(begin, end);
    if (normalizer_.empty() && normalized_.empty()) return words(text.substr(begin, end - begin), begin == 0);
    MarkedText normalized{std::string(text.substr(begin, end - begin)), {}};
    // The flags cost a byte for each byte of text; only a control token that is looked for in normalized text needs
    // them.
    if (normalized_.has_control() && untrusted.overlap(begin, end)) normalized.untrusted = untrusted.flags(begin, end);
    RETURN_IF_ERROR(normalizer_.apply(normalized, scratch_.regex));
    return encode_normalized(normalized, begin == 0);
  }

  Status encode_normalized(const MarkedText& normalized, bool at_start) {
    const auto allowed = [&](const AddedToken& token, size_t begin, size_t end) {
      if (!token.control) return true;
      const auto flags = normalized.untrusted.begin();
      // Without flags nothing of the section is untrusted: encode_part() asks for them wherever it matters.
      const bool forged =
          normalized.marked() && std::any_of(flags + static_cast<ptrdiff_t>(begin), flags + static_cast<ptrdiff_t>(end),
                                             [](uint8_t flag) { return flag != 0; });
      return parse_special_ && !forged;
    };
    const std::string_view text = normalized.bytes;
    AddedTokenSet::Match match;
    for (size_t at = 0; at < text.size();) {
      const bool found = normalized_.find(text, at, allowed, match);
      const size_t end = found ? match.begin : text.size();
      if (end > at) RETURN_IF_ERROR(words(text.substr(at, end - at), at_start && at == 0));
      if (!found) break;
      out_->push_back(match.token->id);
      at = match.end;
    }
    return ok_status();
  }

  Status words(std::string_view text, bool at_start) {
    // `at_start`: Metaspace with the prepend scheme "first" marks the first word of the text, not that of each section.
    return pre_tokenizer_.run(text, at_start, scratch_, word_sink_);
  }

  const AddedTokenSet& plain_;
  const AddedTokenSet& normalized_;
  const NormalizerChain& normalizer_;
  const PreTokenizerChain& pre_tokenizer_;
  const BpeModel& bpe_;
  bool parse_special_;
  bool guarded_ = false;
  PreTokenizerScratch scratch_;
  BpeScratch bpe_scratch_;
  PreTokenizerChain::Sink word_sink_;
  std::vector<int32_t>* out_ = nullptr;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::encode(std::span<const Segment> segments, const EncodeOptions& options) const {
  size_t size = 0;
  for (const Segment& segment : segments) size += segment.text.size();
  if (size > kMaxEncodeBytes) {
    return error(StatusCode::kTooLarge, "the text has {} bytes; wanted at most {}", size, kMaxEncodeBytes);
  }
  UntrustedRanges untrusted;
  std::string joined;
  // Joined, so that words and merges cross the borders of segments as they would in one string. A single segment is
  // used where it lies: prompts of completions are one, and may have megabytes.
  if (segments.size() > 1) joined.reserve(size);
  size_t at = 0;
  for (const Segment& segment : segments) {
    if (segments.size() > 1) joined += segment.text;
    if (!segment.trusted) untrusted.add(at, at + segment.text.size());
    at += segment.text.size();
  }
  const std::string_view text = segments.size() == 1 ? std::string_view(segments[0].text) : std::string_view(joined);
  if (const size_t broken = utf8_find_invalid(text); broken != std::string_view::npos) {
    return invalid_argument("the text has byte 0x{:02x} at {}; wanted UTF-8", static_cast<unsigned char>(text[broken]),
                            broken);
  }
  std::vector<int32_t> ids;
  // About four bytes a token. The assignment of the prefix below keeps the capacity.
  ids.reserve(size / 4 + impl_->post_processor.prefix.size() + impl_->post_processor.suffix.size());
  if (options.add_special_tokens) ids = impl_->post_processor.prefix;
  Encoder encoder(impl_->plain, impl_->normalized, impl_->normalizer, impl_->pre_tokenizer, *impl_->bpe,
                  options.parse_special);
  RETURN_IF_ERROR(encoder.run(text, untrusted, ids));
  if (options.add_special_tokens) {
    ids.insert(ids.end(), impl_->post_processor.suffix.begin(), impl_->post_processor.suffix.end());
  }
  return ids;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view trusted_text, const EncodeOptions& options) const {
  const Segment segment{std::string(trusted_text), true};
  return encode(std::span<const Segment>(&segment, 1), options);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  // One state for all ids: a character's bytes may be several tokens, and Strip concerns the beginning of the text
  // alone.
  DecoderState state(impl_->decoder);
  std::string out;
  for (const int32_t id : ids) {
    if (!has_token(id) || (skip_special_tokens && is_special(id))) continue;
    state.push(decoder_text(id), out);
  }
  state.finish(out);
  return out;
}

int32_t Tokenizer::vocab_size() const { return std::max(impl_->model.size(), impl_->added.size()); }
bool Tokenizer::has_token(int32_t id) const { return impl_->added.has(id) || impl_->model.has(id); }
// An added token may repeat an entry of the model, with the same id (tokenizer_load.cc); its own text is the one to
// show.
std::string_view Tokenizer::token_text(int32_t id) const {
  return impl_->added.has(id) ? impl_->added.text(id) : impl_->model.text(id);
}
std::string Tokenizer::token_bytes(int32_t id) const {
  // The decoder does not apply: an added token's text is not written in the byte-level alphabet.
  if (impl_->added.has(id)) return std::string(impl_->added.text(id));
  return impl_->decoder.token_bytes(impl_->model.text(id));
}
std::optional<int32_t> Tokenizer::id_of(std::string_view token_text) const {
  int32_t id = impl_->added.find(token_text);
  if (id == Vocab::kNone) id = impl_->model.find(token_text);
  if (id == Vocab::kNone) return std::nullopt;
  return id;
}

bool Tokenizer::is_added(int32_t id) const { return impl_->has_flag(id, Impl::kAdded); }
bool Tokenizer::is_special(int32_t id) const { return impl_->has_flag(id, Impl::kSpecial); }
bool Tokenizer::is_control(int32_t id) const { return impl_->has_flag(id, Impl::kControl); }

std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos.id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos.id; }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->pad.id; }
std::optional<int32_t> Tokenizer::unk_id() const { return impl_->unk.id; }
std::string_view Tokenizer::bos_token() const { return impl_->bos.text; }
std::string_view Tokenizer::eos_token() const { return impl_->eos.text; }
std::string_view Tokenizer::pad_token() const { return impl_->pad.text; }
std::string_view Tokenizer::unk_token() const { return impl_->unk.text; }
std::optional<bool> Tokenizer::add_bos_token() const { return impl_->add_bos_token; }
int64_t Tokenizer::model_max_length() const { return impl_->model_max_length; }
const std::string& Tokenizer::chat_template() const { return impl_->chat_template; }
const DecoderChain& Tokenizer::decoder() const { return impl_->decoder; }
std::string_view Tokenizer::decoder_text(int32_t id) const {
  const auto at = impl_->normalized_texts.find(id);
  return at == impl_->normalized_texts.end() ? token_text(id) : std::string_view(at->second);
}

}  // namespace millrace
