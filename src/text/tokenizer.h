// Tokenizer: the Hugging Face tokenizer.json format for BPE models (byte-level and SentencePiece style), text to ids
// and back.
//
// One tokenizer is loaded per model and shared by every thread of a process: it is immutable after load, so all const
// members may be called from any thread at once. Its ids and its text equal those of Hugging Face `tokenizers` 0.23 for
// every input, including code points that are newer than the Unicode tables of the libraries used here.
//
// Trust. A prompt is a sequence of segments; the template's own text is trusted, what came with the request is not.
// Control tokens (see is_control) are recognised only where every byte of the match is trusted: user text that spells
// <|im_end|> becomes ordinary tokens. Nothing else depends on trust: segments are joined before normalization and
// pre-tokenization, so without a forged token the ids are those of the joined string, wherever the borders between the
// segments lie.
//
// The unk token is the one exception: it may stand for an untrusted character that the vocabulary cannot spell.
//
// Invariants: 0 <= id < vocab_size() for each id returned; input must be valid UTF-8; time is O(n log n) in the bytes
// given. Limits on the length of a text are the caller's; those on the file are named below.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/segment.h"

namespace millrace {

inline constexpr size_t kMaxTokenizerFileBytes = size_t{256} << 20;  // the largest published one (Gemma 3) has 34 MB
inline constexpr size_t kMaxTokenizerConfigBytes = size_t{16} << 20;
inline constexpr int64_t kMaxVocab = int64_t{1} << 22;      // ids are below this
inline constexpr size_t kMaxMerges = size_t{1} << 23;       // Gemma 3 has 515 k
inline constexpr size_t kMaxTokenBytes = size_t{1} << 16;   // one vocabulary entry or added token
inline constexpr size_t kMaxAddedTokens = size_t{1} << 16;  // Gemma 3 has 6.4 k
inline constexpr size_t kMaxEncodeBytes = size_t{1} << 30;  // positions inside a text are 32-bit

struct EncodeOptions {
  bool add_special_tokens = true;  // run the post-processor (BOS and the like); false after a chat template
  bool parse_special = true;       // false: control tokens are ordinary text everywhere, trusted or not
};

class DecoderChain;

class Tokenizer {
 public:
  // Reads `dir`/tokenizer.json and, where it exists, `dir`/tokenizer_config.json. Errors: kNotFound (no file),
  // kTooLarge, kInvalidArgument (broken) and kUnsupported (a component type that this build does not know), each naming
  // path and field.
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& dir);
  // The same from memory; `config_json` may be empty.
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json,
                                                            std::string_view config_json = {});
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Text to ids. Errors: kInvalidArgument (not UTF-8), kTooLarge (over kMaxEncodeBytes, or a pattern of the
  // tokenizer.json needs more backtracking than is allowed).
  Result<std::vector<int32_t>> encode(std::span<const Segment> segments, const EncodeOptions& options = {}) const;
  // One trusted text, as Hugging Face's encode(): control tokens are recognised. For user text, pass a Segment.
  Result<std::vector<int32_t>> encode(std::string_view trusted_text, const EncodeOptions& options = {}) const;

  // Ids to text, as Hugging Face's decode(): ids without a token are skipped, broken UTF-8 becomes U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // One more than the highest id, holes included. The model's embedding may have more rows.
  int32_t vocab_size() const;
  bool has_token(int32_t id) const;  // false for holes and for ids out of range
  // The token as the file spells it ("Ġthe", "▁the", "<0x0A>"); empty where there is none.
  std::string_view token_text(int32_t id) const;
  // The bytes that the token stands for (" the", "\n"); possibly not UTF-8 alone. What a grammar mask or `logprobs`
  // needs.
  std::string token_bytes(int32_t id) const;
  std::optional<int32_t> id_of(std::string_view token_text) const;

  bool is_added(int32_t id) const;    // in added_tokens
  bool is_special(int32_t id) const;  // in added_tokens with special = true: decode may skip it
  // Never made from untrusted text: special, or an added token shaped <|...|> or <｜...｜> (files forget the flag on
  // some), or one that is a part of tool calls, tool results or reasoning (<tool_call>, <think>: text/tools/dialect.h).
  bool is_control(int32_t id) const;

  // From tokenizer_config.json; absent where the file names none or names a text that is no token.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  // The texts for the chat template's variables bos_token, eos_token...; empty when absent.
  std::string_view bos_token() const;
  std::string_view eos_token() const;
  std::string_view pad_token() const;
  std::string_view unk_token() const;
  std::optional<bool> add_bos_token() const;
  int64_t model_max_length() const;  // 0: not stated, or the "infinite" value of old files
  // chat_template of tokenizer_config.json when it is a string, else the one named "default"; empty when there is none.
  const std::string& chat_template() const;

  // For IncrementalDetokenizer: the decoder, and the text of a token that goes into it (an added token that is looked
  // for in normalized text is decoded in its normalized form).
  const DecoderChain& decoder() const;
  std::string_view decoder_text(int32_t id) const;

  struct Impl;  // opaque: tokenizer_impl.h

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace millrace
