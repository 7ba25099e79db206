// The parts of a Tokenizer; for tokenizer.cc and tokenizer_load.cc alone.
//
// Owner: its Tokenizer. Thread safety: filled by the loader, then immutable and shared.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

namespace millrace {

struct Tokenizer::Impl {
  enum Flag : uint8_t { kAdded = 1, kSpecial = 2, kControl = 4 };
  // bos, eos, pad, unk of tokenizer_config.json.
  struct NamedToken {
    std::string text;
    std::optional<int32_t> id;
  };

  Vocab model;                                                // model.vocab
  Vocab added;                                                // added_tokens, which may repeat entries of the model
  std::unordered_map<int32_t, std::string> normalized_texts;  // of added tokens, where normalization changes them
  std::vector<uint8_t> flags;
  AddedTokenSet plain;       // normalized = false: looked for in the input
  AddedTokenSet normalized;  // looked for in the normalized text
  NormalizerChain normalizer;
  PreTokenizerChain pre_tokenizer;
  std::unique_ptr<BpeModel> bpe;
  PostProcessor post_processor;
  DecoderChain decoder;

  NamedToken bos, eos, pad, unk;
  std::optional<bool> add_bos_token;
  int64_t model_max_length = 0;
  std::string chat_template;

  bool has_flag(int32_t id, Flag flag) const {
    return id >= 0 && static_cast<size_t>(id) < flags.size() && (flags[static_cast<size_t>(id)] & flag) != 0;
  }
};

}  // namespace millrace
