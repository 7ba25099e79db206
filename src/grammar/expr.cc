#include "grammar/expr.h"

#include <algorithm>

#include "base/status.h"
#include "base/utf8.h"

namespace millrace::grammar {
namespace {

constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;

ExprPtr too_deep() {
  static const ExprPtr kExpr = std::make_shared<const Expr>(Expr{.kind = Expr::Kind::kTooDeep});
  return kExpr;
}

bool is_too_deep(const ExprPtr& expr) { return expr->kind == Expr::Kind::kTooDeep; }

ExprPtr make(Expr expr) {
  for (const ExprPtr& part : expr.parts) expr.height = std::max(expr.height, part->height + 1);
  if (expr.height > kMaxExprHeight || std::ranges::any_of(expr.parts, is_too_deep)) return too_deep();
  return std::make_shared<const Expr>(std::move(expr));
}

}  // namespace

CharSet CharSet::of(std::string_view ascii) {
  CharSet set;
  for (const char c : ascii) set.add(static_cast<unsigned char>(c), static_cast<unsigned char>(c));
  return set;
}

void CharSet::add(uint32_t low, uint32_t high) {
  CHECK(high <= kMaxCodePoint);
  if (low < kFirstSurrogate && high > kLastSurrogate) {
    add(low, kFirstSurrogate - 1);
    return add(kLastSurrogate + 1, high);
  }
  if (low >= kFirstSurrogate && low <= kLastSurrogate) low = kLastSurrogate + 1;
  if (high >= kFirstSurrogate && high <= kLastSurrogate) high = kFirstSurrogate - 1;
  if (low > high) return;
  ranges_.push_back({low, high});
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.low < b.low; });
  std::vector<Range> merged;
  for (const Range& r : ranges_) {
    if (!merged.empty() && r.low <= merged.back().high + 1) {
      merged.back().high = std::max(merged.back().high, r.high);
    } else {
      merged.push_back(r);
    }
  }
  ranges_ = std::move(merged);
}

void CharSet::add(const CharSet& other) {
  for (const Range& r : other.ranges_) add(r.low, r.high);
}

CharSet CharSet::complement() const {
  CharSet out;
  uint32_t next = 0;
  for (const Range& r : ranges_) {
    if (r.low > next) out.add(next, r.low - 1);
    next = r.high + 1;
  }
  if (next <= kMaxCodePoint) out.add(next, kMaxCodePoint);
  return out;
}

CharSet CharSet::intersect(const CharSet& other) const {
  CharSet out;
  for (const Range& a : ranges_) {
    for (const Range& b : other.ranges_) {
      const uint32_t low = std::max(a.low, b.low), high = std::min(a.high, b.high);
      if (low <= high) out.add(low, high);
    }
  }
  return out;
}

CharSet CharSet::minus(const CharSet& other) const { return intersect(other.complement()); }

bool CharSet::contains(uint32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [c](const Range& r) { return r.low <= c && c <= r.high; });
}

ExprPtr empty() {
  static const ExprPtr kExpr = make({.kind = Expr::Kind::kEmpty});
  return kExpr;
}

ExprPtr never() {
  static const ExprPtr kExpr = make({.kind = Expr::Kind::kNever});
  return kExpr;
}

ExprPtr text(std::string bytes) {
  if (bytes.empty()) return empty();
  return make({.kind = Expr::Kind::kText, .text = std::move(bytes)});
}

ExprPtr chars(CharSet set) {
  if (set.empty()) return never();
  return make({.kind = Expr::Kind::kChars, .chars = std::move(set)});
}

ExprPtr byte_range(uint8_t low, uint8_t high) {
  CHECK(low <= high);
  return make({.kind = Expr::Kind::kByte, .low = low, .high = high});
}

ExprPtr seq(std::vector<ExprPtr> parts) {
  for (const ExprPtr& part : parts) {
    if (part->kind == Expr::Kind::kNever) return never();
  }
  std::erase_if(parts, [](const ExprPtr& part) { return part->kind == Expr::Kind::kEmpty; });
  if (parts.empty()) return empty();
  if (parts.size() == 1) return parts[0];
  return make({.kind = Expr::Kind::kSeq, .parts = std::move(parts)});
}

ExprPtr alt(std::vector<ExprPtr> parts) {
  std::erase_if(parts, [](const ExprPtr& part) { return part->kind == Expr::Kind::kNever; });
  if (parts.empty()) return never();
  if (parts.size() == 1) return parts[0];
  return make({.kind = Expr::Kind::kAlt, .parts = std::move(parts)});
}

ExprPtr repeat(ExprPtr part, int least, int most) {
  CHECK(least >= 0 && (most == kUnbounded || least <= most));  // a parser refuses other bounds
  if (most == 0 || part->kind == Expr::Kind::kEmpty) return empty();
  if (part->kind == Expr::Kind::kNever) return least == 0 ? empty() : never();
  if (least == 1 && most == 1) return part;
  return make({.kind = Expr::Kind::kRepeat, .parts = {std::move(part)}, .least = least, .most = most});
}

ExprPtr optional(ExprPtr part) { return repeat(std::move(part), 0, 1); }

ExprPtr tick() {
  static const ExprPtr kExpr = make({.kind = Expr::Kind::kTick});
  return kExpr;
}

ExprPtr rule(int number) {
  CHECK(number >= 0);
  return make({.kind = Expr::Kind::kRule, .rule = number});
}

std::string utf8(uint32_t c) {
  CHECK(c <= kMaxCodePoint);
  std::string out;
  utf8_append(out, c);
  return out;
}

}  // namespace millrace::grammar
