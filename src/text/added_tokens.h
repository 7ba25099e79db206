// AddedTokens: the "added_tokens" of a tokenizer.json, and the search for them in a text.
//
// Built by one thread, then immutable and shared. Two sets are searched at different moments: tokens with normalized =
// false in the input, the others in the normalized text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/vocab.h"

namespace millrace {

struct AddedToken {
  int32_t id = Vocab::kNone;
  std::string content;
  bool single_word = false;  // no word character may touch it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and the white space after it
  bool normalized = false;
  bool special = false;
  bool control = false;  // never made from untrusted text: special, shaped <|...|> or <｜...｜>, or a chat marker
};

// One entry of added_tokens, or of added_tokens_decoder, whose key is the id. Errors name the field.
Result<AddedToken> parse_added_token(const Json& json, std::optional<int64_t> id);

class AddedTokenSet {
 public:
  struct Match {
    const AddedToken* token = nullptr;
    size_t begin = 0;  // with the white space that lstrip and rstrip take
    size_t end = 0;
  };
  // Whether `token` may match the bytes [begin, end) of the text.
  using Allowed = std::function<bool(const AddedToken& token, size_t begin, size_t end)>;

  void add(AddedToken token);  // the content is not empty and not in the set
  bool empty() const { return tokens_.empty(); }
  bool has_control() const { return has_control_; }

  // The leftmost match at or after `from`, the longest of those that begin there. Where `allowed` refuses one, shorter
  // and later ones are tried. A match of a single_word token that touches a word is dropped together with its bytes.
  bool find(std::string_view text, size_t from, const Allowed& allowed, Match& match) const;

 private:
  static constexpr uint32_t kNoNode = UINT32_MAX;
  struct Node {
    uint32_t first_child = kNoNode;
    uint32_t next_sibling = kNoNode;
    int32_t token = -1;  // index into tokens_
    char byte = 0;
  };

  uint32_t child(uint32_t node, char byte) const;
  const AddedToken* longest_at(std::string_view text, size_t at, const Allowed& allowed) const;
  static bool stands_alone(std::string_view text, size_t begin, size_t end);

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> first_bytes_{};
  bool has_control_ = false;
};

}  // namespace millrace
