#include "grammar/json_numbers.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/status.h"

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
  CHECK(a.size() == b.size());
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

struct Integer {
  bool negative = false;
  std::string magnitude = "0";
};

Integer plus_one(const Integer& number) {
  if (!number.negative) return {false, plus_one(number.magnitude)};
  std::string less_by_one = minus_one(number.magnitude);
  const bool negative = less_by_one != "0";
  return {negative, std::move(less_by_one)};
}

Integer negated(const Integer& number) { return {!number.negative && number.magnitude != "0", number.magnitude}; }

// The least integer that a lower bound allows.
Integer least_integer(const NumberBound& bound) {
  const Integer truncated{bound.negative && bound.integer != "0", bound.integer};
  const bool above = bound.fraction.empty() ? bound.exclusive : !bound.negative;
  return above ? plus_one(truncated) : truncated;
}

NumberBound negated(NumberBound bound) {
  bound.negative = !bound.negative && !bound.is_zero();
  return bound;
}

Integer most_integer(const NumberBound& bound) { return negated(least_integer(negated(bound))); }

bool less(const Integer& a, const Integer& b) {
  if (a.negative != b.negative) return a.negative;
  return a.negative ? less(b.magnitude, a.magnitude) : less(a.magnitude, b.magnitude);
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

Decimal decimal_of(const NumberBound& bound) { return {bound.integer, bound.fraction, bound.exclusive}; }

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

NumberBound NumberBound::of(std::string_view text, bool exclusive) {
  NumberBound out;
  out.exclusive = exclusive;
  out.negative = text.starts_with('-');
  if (out.negative) text.remove_prefix(1);
  const std::size_t mark = std::min(text.find_first_of("eE"), text.size());
  const int exponent = mark < text.size() ? std::atoi(std::string(text.substr(mark + 1)).c_str()) : 0;
  std::string all(text.substr(0, mark));
  const auto point = std::min(all.find('.'), all.size());
  std::erase(all, '.');
  const int before_point = static_cast<int>(point) + exponent;  // of the digits in `all`
  if (before_point <= 0) {
    all.insert(0, static_cast<std::size_t>(1 - before_point), '0');
  } else if (all.size() < static_cast<std::size_t>(before_point)) {
    all.resize(static_cast<std::size_t>(before_point), '0');
  }
  const auto split = static_cast<std::size_t>(std::max(1, before_point));
  out.integer = all.substr(0, split);
  out.integer.erase(0, std::min(out.integer.find_first_not_of('0'), out.integer.size() - 1));
  out.fraction = all.substr(split);
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  out.negative = out.negative && !out.is_zero();
  return out;
}

const NumberBound& narrower(const NumberBound& a, const NumberBound& b, bool lower) {
  const auto below = [](const NumberBound& x, const NumberBound& y) {
    if (x.negative != y.negative) return x.negative;
    const bool smaller = x.integer != y.integer ? less(x.integer, y.integer) : x.fraction < y.fraction;
    const bool same = x.integer == y.integer && x.fraction == y.fraction;
    return x.negative ? !smaller && !same : smaller;
  };
  if (below(a, b)) return lower ? b : a;
  if (below(b, a)) return lower ? a : b;
  return a.exclusive ? a : b;
}

namespace {

// Bounds that are too long are moved towards zero, so that less is allowed; nothing is, where that cannot be.
struct Range {
  std::optional<NumberBound> least, most;
  bool empty = false;
};

Range shortened(std::optional<NumberBound> least, std::optional<NumberBound> most) {
  Range out{std::move(least), std::move(most)};
  const auto is_long = [](const std::optional<NumberBound>& b) { return b && b->integer.size() > kMaxBoundDigits; };
  const NumberBound farthest{false, std::string(kMaxBoundDigits, '9'), "", false};
  if (is_long(out.least)) {
    if (!out.least->negative) out.empty = true;
    out.least = negated(farthest);
  }
  if (is_long(out.most)) {
    if (out.most->negative) out.empty = true;
    out.most = farthest;
  }
  return out;
}

}  // namespace

ExprPtr integers_between(const std::optional<NumberBound>& lower, const std::optional<NumberBound>& upper) {
  const Range range = shortened(lower, upper);
  if (range.empty) return never();
  const std::optional<Integer> least = range.least ? std::optional(least_integer(*range.least)) : std::nullopt,
                               most = range.most ? std::optional(most_integer(*range.most)) : std::nullopt;
  if (least && most && less(*most, *least)) return never();
  std::vector<ExprPtr> parts;
  if (!least || least->negative) {
    const std::string first = most && most->negative ? most->magnitude : "1";
    parts.push_back(seq({text("-"), natural_between(first, least ? std::optional(least->magnitude) : std::nullopt)}));
  }
  if (!most || !most->negative) {
    parts.push_back(natural_between(least && !least->negative ? least->magnitude : "0",
                                    most ? std::optional(most->magnitude) : std::nullopt));
  }
  return alt(std::move(parts));
}

ExprPtr numbers_between(const std::optional<NumberBound>& lower, const std::optional<NumberBound>& upper) {
  const auto [least, most, is_empty] = shortened(lower, upper);
  if (is_empty) return never();
  const Decimal zero;
  std::vector<ExprPtr> parts;
  if (!least || least->negative) {
    const Decimal first = most && (most->negative || most->is_zero()) ? decimal_of(*most) : zero;
    parts.push_back(seq({text("-"), least ? decimals_between(first, decimal_of(*least)) : decimals_from(first)}));
  }
  if (!most || !most->negative) {
    const Decimal first = least && !least->negative ? decimal_of(*least) : zero;
    parts.push_back(most ? decimals_between(first, decimal_of(*most)) : decimals_from(first));
  }
  return alt(std::move(parts));
}

Result<Language> multiples_of(const NumberBound& step, bool integer) {
  const std::size_t decimals = step.fraction.size();
  std::string digits = step.integer == "0" ? step.fraction : step.integer + step.fraction;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  const std::size_t modulus = digits.empty() || digits.size() > 6 ? kMaxMultipleStates : std::stoul(digits);
  if (digits.empty() || modulus * (decimals + 2) > kMaxMultipleStates) {
    return error(StatusCode::kTooLarge, "multipleOf {}.{} needs more than {} states; wanted a smaller number",
                 step.integer, step.fraction.empty() ? "0" : step.fraction, kMaxMultipleStates);
  }
  // States: the beginning, behind '-', behind a leading 0, behind any other digit with its remainder, dead; then, with
  // 0 to `decimals` digits behind the point (more of them are zeros), the remainder. A text ends where the digits that
  // are left out, all zeros, make the remainder 0.
  const std::size_t integers = 4, fractions = integers + modulus;
  const std::size_t point = fractions + modulus * (decimals + 1);  // with no digit behind it yet: by remainder
  enum : std::size_t { kBegin, kMinus, kZero, kDead };
  const auto next = [&](std::size_t state, uint8_t byte) -> std::size_t {
    const bool is_digit = byte >= '0' && byte <= '9';
    const std::size_t digit = byte - '0';
    if (state == kDead) return kDead;
    if (state < integers) {
      if (state == kBegin && byte == '-') return kMinus;
      if (state != kZero && byte == '0') return kZero;
      if (state != kZero && is_digit) return integers + digit % modulus;
      return state == kZero && byte == '.' && !integer ? point : static_cast<std::size_t>(kDead);
    }
    if (state < fractions) {
      const std::size_t rest = state - integers;
      if (is_digit) return integers + (rest * 10 + digit) % modulus;
      return byte == '.' && !integer ? point + rest : static_cast<std::size_t>(kDead);
    }
    const bool first = state >= point;
    const std::size_t rest = (state - fractions) % modulus, count = first ? 0 : (state - fractions) / modulus;
    if (!is_digit) return kDead;
    if (count == decimals) return digit != 0 ? static_cast<std::size_t>(kDead) : fractions + decimals * modulus + rest;
    return fractions + (count + 1) * modulus + (rest * 10 + digit) % modulus;
  };
  const auto accepts = [&](std::size_t state) {
    if (state < integers) return state == kZero;
    if (state >= point) return false;
    const bool is_integer = state < fractions;
    std::size_t rest = is_integer ? state - integers : (state - fractions) % modulus;
    for (std::size_t i = is_integer ? 0 : (state - fractions) / modulus; i < decimals; ++i) rest = rest * 10 % modulus;
    return rest == 0;
  };
  return Language::of_automaton(point + modulus, next, accepts);
}

}  // namespace millrace::grammar
