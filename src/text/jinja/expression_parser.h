// The expression half of the parser. Precedence from weak to strong: if/else, or, and, not, comparisons and in, + -, ~,
// * / // %, **, unary, then postfix (. [] ()), filters and tests, as in Jinja's own grammar.
//
// Thread safety: one parser, one thread.
#pragma once

#include <string>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace millrace::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : stream_(stream) {}

  ExprPtr expression() { return conditional(); }
  ExprPtr expression_without_if() { return disjunction(); }

  // An expression or a tuple without parentheses. `if` may not follow where `with_if` is false. `end_name` is a keyword
  // that ends the tuple (after a trailing comma).
  ExprPtr tuple(bool with_if = true, std::string_view end_name = {});

  // `| name(args) | ...` applied to `target`, which may be null. With `inline_start` the first | is absent.
  ExprPtr filters(ExprPtr target, bool inline_start);

  ExprPtr primary();

  // Names read since the last take, for the macro that needs to know whether its body uses `caller`.
  std::vector<std::string>& names_read() { return names_read_; }

 private:
  ExprPtr make(ExprKind kind, int line, std::string name = {});
  ExprPtr add(ExprPtr parent, ExprPtr child);  // child may be null; returns parent, its height updated
  void check_height(const Expr& expr, int height);

  ExprPtr conditional();
  ExprPtr disjunction();
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr literal_string();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr parenthesized();
  ExprPtr postfix(ExprPtr node);
  ExprPtr postfix_filters(ExprPtr node);
  ExprPtr subscript(ExprPtr node);
  ExprPtr subscribed();
  ExprPtr call(ExprPtr node);
  void call_arguments(Expr& node);
  void call_argument(Expr& node);
  ExprPtr filter(ExprPtr target);
  ExprPtr test(ExprPtr node);
  std::string dotted_name(std::string_view wanted);
  bool at_tuple_end(std::string_view end_name) const;
  ExprPtr binary(ExprPtr left, std::string op, ExprPtr right, int line);

  TokenStream& stream_;
  std::vector<std::string> names_read_;
};

}  // namespace millrace::jinja
