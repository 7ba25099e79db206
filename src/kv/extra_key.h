// ExtraKey: composes the namespace key of a request from what else its KV depends on besides tokens and weights: the
// adapter, the client's cache salt, the hashes of its media. Requests with different keys never share pages.
//
// Parts are length-prefixed, so no two different lists of parts give the same key, whatever bytes a client puts in:
//   ExtraKey().add("salt", "a").add("adapter", "b").str() == "4:salt1:a7:adapter1:b"
// A part with an empty value is left out; a request without parts has the empty key. The order of the calls counts:
// let one function compose the keys of all requests.
// Thread safety: values.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

class ExtraKey {
 public:
  ExtraKey& add(std::string_view kind, std::string_view value) {
    if (value.empty()) return *this;
    append(kind);
    append(value);
    return *this;
  }
  const std::string& str() const { return key_; }

 private:
  void append(std::string_view part) {
    key_ += std::to_string(part.size());
    key_ += ':';
    key_ += part;
  }

  std::string key_;
};

}  // namespace millrace
