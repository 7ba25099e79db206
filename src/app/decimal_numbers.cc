#include "app/decimal_numbers.h"

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace millrace {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Digits without a zero before them, and perhaps a sign.
bool is_decimal_integer(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return false;
  return text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "0.5", "1e-3"; no "0x1p3", "nan", "inf".
bool is_decimal_number(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || (!is_digit(text.front()) && text.front() != '.')) return false;
  return text.find_first_not_of("0123456789.eE+-") == std::string_view::npos;
}

}  // namespace

void want_decimal_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options({})) {
    const std::string type = option->get_type_name();
    const bool integer = type.starts_with("INT") || type.starts_with("UINT");
    if (!integer && !type.starts_with("FLOAT")) continue;
    option->check(CLI::Validator(
        [integer](std::string& text) {
          const bool good = integer ? is_decimal_integer(text) : is_decimal_number(text);
          return good ? std::string()
                      : "'" + text.substr(0, 64) + "' is no decimal number; wanted " +
                            (integer ? "one such as 16" : "one such as 0.5");
        },
        ""));
  }
  for (CLI::App* command : app.get_subcommands({})) want_decimal_numbers(*command);
}

}  // namespace millrace
