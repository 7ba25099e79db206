#include "grammar/json_formats.h"

#include <algorithm>
#include <array>
#include <utility>

namespace millrace::grammar {
namespace {

// RFC 3339. The days go with the months; 29 February stands in leap years alone.
#define MR_YEAR "[0-9]{4}"
#define MR_LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define MR_DATE                                                                              \
  "(?:" MR_YEAR                                                                              \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
  "02-(?:0[1-9]|1[0-9]|2[0-8]))|" MR_LEAP "-02-29)"
#define MR_TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define MR_OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define MR_IPV4 "(?:" MR_OCTET "\\.){3}" MR_OCTET
#define MR_H16 "[0-9A-Fa-f]{1,4}"
#define MR_LS32 "(?:" MR_H16 ":" MR_H16 "|" MR_IPV4 ")"
// RFC 4291 as RFC 3986 spells it: one "::" at most.
#define MR_IPV6                                                                                                     \
  "(?:(?:" MR_H16 ":){6}" MR_LS32 "|::(?:" MR_H16 ":){5}" MR_LS32 "|(?:" MR_H16 ")?::(?:" MR_H16 ":){4}" MR_LS32    \
  "|(?:(?:" MR_H16 ":){0,1}" MR_H16 ")?::(?:" MR_H16 ":){3}" MR_LS32 "|(?:(?:" MR_H16 ":){0,2}" MR_H16              \
  ")?::(?:" MR_H16 ":){2}" MR_LS32 "|(?:(?:" MR_H16 ":){0,3}" MR_H16 ")?::" MR_H16 ":" MR_LS32 "|(?:(?:" MR_H16     \
  ":){0,4}" MR_H16 ")?::" MR_LS32 "|(?:(?:" MR_H16 ":){0,5}" MR_H16 ")?::" MR_H16 "|(?:(?:" MR_H16 ":){0,6}" MR_H16 \
  ")?::)"
#define MR_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define MR_HOST MR_LABEL "(?:\\." MR_LABEL ")*"
#define MR_PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define MR_QUERY "(?:\\?(?:" MR_PCHAR "|[/?])*)?(?:#(?:" MR_PCHAR "|[/?])*)?"
#define MR_AUTHORITY "(?:[A-Za-z0-9._~!$&'()*+,;=:-]+@)?(?:" MR_HOST "|\\[" MR_IPV6 "\\])(?::[0-9]{0,5})?"

constexpr std::array kPatterns = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"date-time", "^" MR_DATE "[Tt]" MR_TIME "$"},
    {"date", "^" MR_DATE "$"},
    {"time", "^" MR_TIME "$"},
    {"duration",
     "^P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
     "(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))?|"
     "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))$"},
    {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    {"email", "^[A-Za-z0-9!#$%&'*+/=?^_`{}|~-]+(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{}|~-]+)*@" MR_HOST "$"},
    {"hostname", "^" MR_HOST "$"},
    {"ipv4", "^" MR_IPV4 "$"},
    {"ipv6", "^" MR_IPV6 "$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:(?://(?:" MR_AUTHORITY "(?:/" MR_PCHAR "*)*|(?:/" MR_PCHAR "*)+)|/?" MR_PCHAR
            "+(?:/" MR_PCHAR "*)*)" MR_QUERY "$"},
});

constexpr std::array<std::string_view, 8> kOthers = {"idn-email",    "idn-hostname",         "uri-reference",
                                                     "iri",          "iri-reference",        "uri-template",
                                                     "json-pointer", "relative-json-pointer"};

}  // namespace

std::optional<std::string_view> format_pattern(std::string_view format) {
  const auto found = std::find_if(kPatterns.begin(), kPatterns.end(), [&](const auto& p) { return p.first == format; });
  return found == kPatterns.end() ? std::nullopt : std::optional(found->second);
}

bool is_standard_format(std::string_view format) {
  return format_pattern(format) || format == "regex" ||
         std::find(kOthers.begin(), kOthers.end(), format) != kOthers.end();
}

}  // namespace millrace::grammar
