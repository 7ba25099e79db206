// <nlohmann/json.hpp>, whose large functions precompiled_json.cc compiles once. Otherwise every unit that reads, copies or
// writes JSON would generate all of their code again: a tenth of the code of a build. They can still be inlined.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#if NLOHMANN_JSON_VERSION_MAJOR == 3 && NLOHMANN_JSON_VERSION_MINOR == 11 && !defined(MILLRACE_JSON_INSTANCES)
#define MILLRACE_JSON_INSTANCES extern template
#endif

#ifdef MILLRACE_JSON_INSTANCES
// What both kinds have: nlohmann::json, and nlohmann::ordered_json with its members in sequence.
#define MILLRACE_JSON_KIND(json)                                                                                     \
  MILLRACE_JSON_INSTANCES json::basic_json(const json&);                                                             \
  MILLRACE_JSON_INSTANCES json::basic_json(json::initializer_list_t, bool, detail::value_t);                         \
  MILLRACE_JSON_INSTANCES json::json_value::json_value(detail::value_t);                                             \
  MILLRACE_JSON_INSTANCES json::json_value::json_value(const json::array_t&);                                        \
  MILLRACE_JSON_INSTANCES json::json_value::json_value(const json::object_t&);                                       \
  MILLRACE_JSON_INSTANCES void json::json_value::destroy(detail::value_t);                                           \
  MILLRACE_JSON_INSTANCES bool json::operator==(const json&) const noexcept;                                         \
  MILLRACE_JSON_INSTANCES json& json::operator[](json::object_t::key_type);                                          \
  MILLRACE_JSON_INSTANCES std::string json::dump(int, char, bool, detail::error_handler_t) const;                    \
  MILLRACE_JSON_INSTANCES json json::parse(const std::string&, json::parser_callback_t, bool, bool);                 \
  namespace detail {                                                                                                 \
  MILLRACE_JSON_INSTANCES class serializer<json>;                                                                    \
  MILLRACE_JSON_INSTANCES void serializer<json>::dump_integer(unsigned char);                                        \
  MILLRACE_JSON_INSTANCES void serializer<json>::dump_integer(json::number_integer_t);                               \
  MILLRACE_JSON_INSTANCES void serializer<json>::dump_integer(json::number_unsigned_t);                              \
  MILLRACE_JSON_INSTANCES class json_sax_dom_parser<json>;                                                           \
  MILLRACE_JSON_INSTANCES class json_sax_dom_callback_parser<json>;                                                  \
  MILLRACE_JSON_INSTANCES type_error type_error::create(int, const std::string&, const json*);                       \
  MILLRACE_JSON_INSTANCES invalid_iterator invalid_iterator::create(int, const std::string&, const json*);           \
  MILLRACE_JSON_INSTANCES out_of_range out_of_range::create(int, const std::string&, const json*);                   \
  }                                                                                                                  \
  MILLRACE_JSON_PARSER(json, std::string::const_iterator)                                                            \
  MILLRACE_JSON_PARSER(json, const char*)
// One that reads from `iterator`.
#define MILLRACE_JSON_PARSER(json, iterator)                                                                         \
  namespace detail {                                                                                                 \
  MILLRACE_JSON_INSTANCES class lexer<json, iterator_input_adapter<iterator>>;                                       \
  MILLRACE_JSON_INSTANCES class parser<json, iterator_input_adapter<iterator>>;                                      \
  MILLRACE_JSON_INSTANCES bool parser<json, iterator_input_adapter<iterator>>::sax_parse_internal(                   \
      json_sax_dom_parser<json>*);                                                                                   \
  MILLRACE_JSON_INSTANCES bool parser<json, iterator_input_adapter<iterator>>::sax_parse_internal(                   \
      json_sax_dom_callback_parser<json>*);                                                                          \
  }

MILLRACE_JSON_INSTANCES class std::vector<nlohmann::json>;
MILLRACE_JSON_INSTANCES class std::vector<nlohmann::ordered_json>;
NLOHMANN_JSON_NAMESPACE_BEGIN
MILLRACE_JSON_KIND(json)
MILLRACE_JSON_KIND(ordered_json)
namespace detail {
MILLRACE_JSON_INSTANCES parse_error parse_error::create(int, const position_t&, const std::string&, std::nullptr_t);
MILLRACE_JSON_INSTANCES type_error type_error::create(int, const std::string&, std::nullptr_t);
MILLRACE_JSON_INSTANCES out_of_range out_of_range::create(int, const std::string&, std::nullptr_t);
}  // namespace detail
NLOHMANN_JSON_NAMESPACE_END
#endif
