// Request targets, hosts and percent-encoding: strict readings of what a client wrote.
//
// Thread safety: free functions without state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::http {

// A tchar of RFC 9110: what methods and field names are made of.
bool is_token_char(char c);
bool is_token(std::string_view text);

// Decodes %XX into `out`. False on a truncated or non-hex escape or on %00. With `plus_is_space`, '+' becomes ' '.
bool percent_decode(std::string_view text, bool plus_is_space, std::string& out);

// Splits an origin-form target ("/a/b%20c?x=1") into decoded path segments and the raw query. Empty segments are kept,
// so
// "//v1" and "/v1/" differ from "/v1". On failure returns why: anything but '/' first, a fragment, a bad escape, %00,
// bytes outside visible ASCII, a "." or ".." segment (also behind %2e or %2f), a path that is not UTF-8. "" means
// success.
std::string_view split_target(std::string_view target, std::vector<std::string>& segments, std::string& query);

// A Host field value: a name of letters, digits, '.', '-', '_', or an IPv6 literal in brackets, and an optional port.
// `name` gets the host without brackets and port, lower-cased.
bool parse_host(std::string_view host, std::string& name);

// "localhost", "*.localhost", 127.0.0.0/8 or ::1 (a name as parse_host gives it).
bool is_loopback_name(std::string_view name);

}  // namespace millrace::http
