// JsonCursor: a pull reader for the two members of tokenizer.json that are too big for a tree, model.vocab and
// model.merges.
//
// Owned and used by one thread; a view into text that must outlive it and must be valid UTF-8 already. Everything small
// in the file goes through parse_json (base/json.h); the cursor finds where the members lie and reads the two big ones
// in place.
//
// Errors are kInvalidArgument and name the byte offset; after an error the cursor is not to be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

class JsonCursor {
 public:
  // `base_offset` is added to the offsets in errors, for a cursor over a slice of a file.
  explicit JsonCursor(std::string_view text, size_t base_offset = 0) : text_(text), base_offset_(base_offset) {}

  // The first byte of the next value or bracket, white space skipped; '\0' at the end.
  char peek();
  size_t size_bytes() const { return text_.size(); }
  size_t offset() const { return base_offset_ + at_; }

  // Enters '{' or '['. Then call next_member / next_element until it gives false; that leaves the bracket.
  Status enter(char bracket);
  Result<bool> next_member(std::string& key);
  Result<bool> next_element();

  Status read_string(std::string& out);  // replaces `out`
  Status read_integer(int64_t& out);     // a JSON integer that fits; no fraction, no exponent
  // Steps over one value of any kind and gives its text. It checks brackets and strings only: parse the slice to check
  // it.
  Result<std::string_view> skip_value();
  Status expect_end();

 private:
  void skip_space();
  Status fail(std::string_view wanted) const;
  Result<bool> next(char closing);
  Status read_escape(std::string& out);
  Result<uint32_t> read_hex4();
  Status skip_string();

  std::string_view text_;
  size_t base_offset_;
  size_t at_ = 0;
  bool first_ = false;  // the bracket was entered and no element was read yet
};

}  // namespace millrace
