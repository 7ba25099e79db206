// Text inside the elements and attributes of XML (SVG). Thread safety: a pure function.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

// With &, <, > and quotes as entities. Control characters, which no document may have, are left out.
inline std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

}  // namespace millrace
