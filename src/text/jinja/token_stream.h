// The parser's view of the tokens: one token ahead, expectations with messages, and the nesting guard.
//
// Thread safety: one parser, one thread.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/error.h"
#include "text/jinja/lexer.h"
#include "text/jinja/limits.h"

namespace millrace::jinja {

class TokenStream {
 public:
  TokenStream(std::vector<Token> tokens, const Limits& limits) : limits_(limits), tokens_(std::move(tokens)) {
    CHECK(!tokens_.empty() && tokens_.back().kind == TokenKind::kEnd);
  }

  const Token& current() const { return tokens_[at_]; }
  const Token& look(size_t ahead = 1) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  // Returns the current token and steps behind it; the end token stays.
  const Token& next() {
    const Token& token = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  int line() const { return current().line; }
  const Limits& limits() const { return limits_; }

  bool at_kind(TokenKind kind) const { return current().kind == kind; }
  bool at_name(std::string_view name) const { return is_name(current(), name); }
  bool at_op(std::string_view op) const { return is_op(current(), op); }
  static bool is_name(const Token& token, std::string_view name) {
    return token.kind == TokenKind::kName && token.text == name;
  }
  static bool is_op(const Token& token, std::string_view op) {
    return token.kind == TokenKind::kOperator && token.text == op;
  }

  bool skip_name(std::string_view name) { return at_name(name) && (next(), true); }
  bool skip_op(std::string_view op) { return at_op(op) && (next(), true); }

  void expect_op(std::string_view op) {
    if (!skip_op(op)) unexpected(fmt::format("'{}'", op));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) unexpected(fmt::format("'{}'", name));
  }
  const Token& expect_kind(TokenKind kind, std::string_view wanted) {
    if (!at_kind(kind)) unexpected(wanted);
    return next();
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    fail_at(line(), "unexpected {}, wanted {}", describe(current()), wanted);
  }

  // Counts one level of nesting while it lives.
  class Nested {
   public:
    explicit Nested(TokenStream& stream) : stream_(stream) {
      if (++stream_.depth_ > stream_.limits_.max_parse_depth) {
        throw TemplateError{StatusCode::kTooLarge,
                            fmt::format("the template nests more than {} deep", stream_.limits_.max_parse_depth),
                            stream_.line()};
      }
    }
    ~Nested() { --stream_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    TokenStream& stream_;
  };

 private:
  friend class Nested;
  const Limits& limits_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace millrace::jinja
