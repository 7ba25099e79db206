#include "grammar/json_numbers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace millrace::grammar {
namespace {

ExprPtr digit(char low, char high) {
  if (low > high) return never();
  return chars({static_cast<unsigned char>(low), static_cast<unsigned char>(high)});
}
ExprPtr digits(int least) { return repeat(digit('0', '9'), least, kUnbounded); }
ExprPtr zeros(int least) { return repeat(text("0"), least, kUnbounded); }
ExprPtr literal(char c) { return text(std::string(1, c)); }

// ---- integer numbers
// -------------------------------------------------------------------------------------------------

// The strings from `a` to `b`, which have the same length.
ExprPtr same_length(const std::string& a, const std::string& b) {
  if (a.empty()) return empty();
  if (a > b) return never();
  const int length = static_cast<int>(a.size());
  if (a.find_first_not_of('0') == a.npos && b.find_first_not_of('9') == b.npos) {
    return repeat(digit('0', '9'), length, length);
  }
  const std::string a_rest = a.substr(1), b_rest = b.substr(1);
  if (a[0] == b[0]) return seq({literal(a[0]), same_length(a_rest, b_rest)});
  return alt({seq({literal(a[0]), same_length(a_rest, std::string(a_rest.size(), '9'))}),
              seq({digit(static_cast<char>(a[0] + 1), static_cast<char>(b[0] - 1)),
                   repeat(digit('0', '9'), length - 1, length - 1)}),
              seq({literal(b[0]), same_length(std::string(b_rest.size(), '0'), b_rest)})});
}

// The integer numbers from `a` to `b` (none: without end), both without a sign or leading zeros.
ExprPtr natural_between(const std::string& a, const std::optional<std::string>& b) {
  const std::size_t longest = b ? b->size() : a.size();
  std::vector<ExprPtr> parts;
  for (std::size_t length = a.size(); length <= longest; ++length) {
    const std::string low = length == a.size() ? a : "1" + std::string(length - 1, '0');
    const std::string high = b && length == b->size() ? *b : std::string(length, '9');
    parts.push_back(same_length(low, high));
  }
  if (!b) parts.push_back(seq({digit('1', '9'), digits(static_cast<int>(a.size()))}));
  return alt(std::move(parts));
}

std::string plus_one(std::string number) {
  for (std::size_t i = number.size(); i-- > 0;) {
    if (number[i] != '9') return ++number[i], number;
    number[i] = '0';
  }
  return "1" + number;
}

// Of a number above 0.
std::string minus_one(std::string number) {
  for (std::size_t i = number.size(); i-- > 0;) {
    if (number[i] != '0') {
      --number[i];
      break;
    }
    number[i] = '9';
  }
  const std::size_t first = number.find_first_not_of('0');
  return first == number.npos ? "0" : number.substr(first);
}

bool less(const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

std::string magnitude(int64_t value) {
  return fmt::format("{}", value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value));
}

// ---- fractions: what stands behind "0." or "-12.", as digits with zeros behind them without end ---------------------
// Each function gives the digits from place `i` on. `first`: at least one digit must stand there.

ExprPtr positive() { return seq({zeros(0), digit('1', '9'), digits(0)}); }

ExprPtr fraction_from(const std::string& least, std::size_t i, bool exclusive, bool first) {
  if (i >= least.size()) return exclusive ? positive() : digits(first ? 1 : 0);
  return alt({seq({digit(static_cast<char>(least[i] + 1), '9'), digits(0)}),
              seq({literal(least[i]), fraction_from(least, i + 1, exclusive, false)})});
}

ExprPtr fraction_to(const std::string& most, std::size_t i, bool exclusive, bool first) {
  if (i >= most.size()) return exclusive ? never() : zeros(first ? 1 : 0);
  return alt({first ? never() : empty(), seq({digit('0', static_cast<char>(most[i] - 1)), digits(0)}),
              seq({literal(most[i]), fraction_to(most, i + 1, exclusive, false)})});
}

// Above 0, up to `most`.
ExprPtr fraction_above_zero_to(const std::string& most, std::size_t i, bool exclusive) {
  if (i >= most.size()) return never();
  if (most[i] == '0') return seq({text("0"), fraction_above_zero_to(most, i + 1, exclusive)});
  return alt({seq({text("0"), positive()}), seq({digit('1', static_cast<char>(most[i] - 1)), digits(0)}),
              seq({literal(most[i]), fraction_to(most, i + 1, exclusive, false)})});
}

struct Limits {
  bool least_exclusive = false;
  bool most_exclusive = false;
};

ExprPtr fraction_between(const std::string& least, const std::string& most, std::size_t i, Limits limits, bool first) {
  if (i >= least.size()) {
    return limits.least_exclusive ? fraction_above_zero_to(most, i, limits.most_exclusive)
                                  : fraction_to(most, i, limits.most_exclusive, first);
  }
  if (i >= most.size()) return never();
  if (least[i] > most[i]) return never();
  if (least[i] == most[i]) return seq({literal(least[i]), fraction_between(least, most, i + 1, limits, false)});
  return alt({seq({literal(least[i]), fraction_from(least, i + 1, limits.least_exclusive, false)}),
              seq({digit(static_cast<char>(least[i] + 1), static_cast<char>(most[i] - 1)), digits(0)}),
              seq({literal(most[i]), fraction_to(most, i + 1, limits.most_exclusive, false)})});
}

// ---- decimals ------------------------------------------------------------------------------------------------------

// A number of at least 0: integer part without leading zeros, fraction without trailing ones.
struct Decimal {
  std::string integer = "0";
  std::string fraction;
  bool exclusive = false;
};

Decimal decimal_of(double value, bool exclusive) {
  // The fewest digits that mean this double.
  std::string best;
  for (int precision = 0; precision <= 17; ++precision) {
    best = fmt::format("{:.{}e}", std::abs(value), precision);
    if (std::stod(best) == std::abs(value)) break;
  }
  const std::size_t mark = best.find('e');
  int exponent = std::stoi(best.substr(mark + 1));
  std::string all = best.substr(0, mark);
  std::erase(all, '.');
  Decimal out;
  out.exclusive = exclusive;
  if (exponent < 0) {
    out.fraction = std::string(static_cast<std::size_t>(-exponent - 1), '0') + all;
  } else {
    if (all.size() < static_cast<std::size_t>(exponent) + 1) all.resize(static_cast<std::size_t>(exponent) + 1, '0');
    out.integer = all.substr(0, static_cast<std::size_t>(exponent) + 1);
    out.fraction = all.substr(static_cast<std::size_t>(exponent) + 1);
  }
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  return out;
}

ExprPtr point(ExprPtr rest) { return seq({text("."), std::move(rest)}); }
ExprPtr any_fraction() { return optional(point(digits(1))); }

ExprPtr decimals_from(const Decimal& least) {
  const ExprPtr fraction = point(fraction_from(least.fraction, 0, least.exclusive, true));
  const bool integer_alone = least.fraction.empty() && !least.exclusive;
  return alt({seq({natural_between(plus_one(least.integer), std::nullopt), any_fraction()}),
              seq({text(least.integer), integer_alone ? optional(fraction) : fraction})});
}

ExprPtr decimals_between(const Decimal& least, const Decimal& most) {
  if (less(most.integer, least.integer)) return never();
  const bool most_alone = !most.fraction.empty() || !most.exclusive;
  if (least.integer == most.integer) {
    const ExprPtr fraction =
        point(fraction_between(least.fraction, most.fraction, 0, {least.exclusive, most.exclusive}, true));
    const bool alone = least.fraction.empty() && !least.exclusive && most_alone;
    return seq({text(least.integer), alone ? optional(fraction) : fraction});
  }
  const ExprPtr low = point(fraction_from(least.fraction, 0, least.exclusive, true));
  const ExprPtr high = point(fraction_to(most.fraction, 0, most.exclusive, true));
  const bool least_alone = least.fraction.empty() && !least.exclusive;
  std::vector<ExprPtr> parts{seq({text(least.integer), least_alone ? optional(low) : low}),
                             seq({text(most.integer), most_alone ? optional(high) : high})};
  const std::string first = plus_one(least.integer), last = minus_one(most.integer);
  if (!less(last, first)) parts.push_back(seq({natural_between(first, last), any_fraction()}));
  return alt(std::move(parts));
}

}  // namespace

ExprPtr integers_between(std::optional<int64_t> least, std::optional<int64_t> most) {
  if (least && most && *least > *most) return never();
  std::vector<ExprPtr> parts;
  if (!least || *least < 0) {
    const std::string first = most && *most < 0 ? magnitude(*most) : "1";
    parts.push_back(seq({text("-"), natural_between(first, least ? std::optional(magnitude(*least)) : std::nullopt)}));
  }
  if (!most || *most >= 0) {
    parts.push_back(natural_between(least && *least > 0 ? magnitude(*least) : "0",
                                    most ? std::optional(magnitude(*most)) : std::nullopt));
  }
  return alt(std::move(parts));
}

ExprPtr numbers_between(std::optional<NumberBound> least, std::optional<NumberBound> most) {
  const auto bound = [](const NumberBound& b) { return decimal_of(b.value, b.exclusive); };
  const Decimal zero;
  std::vector<ExprPtr> parts;
  if (!least || least->value < 0) {
    const Decimal first = most && most->value <= 0 ? bound(*most) : zero;
    parts.push_back(seq({text("-"), least ? decimals_between(first, bound(*least)) : decimals_from(first)}));
  }
  if (!most || most->value >= 0) {
    const Decimal first = least && least->value >= 0 ? bound(*least) : zero;
    parts.push_back(most ? decimals_between(first, bound(*most)) : decimals_from(first));
  }
  return alt(std::move(parts));
}

}  // namespace millrace::grammar
