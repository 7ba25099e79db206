#include "text/jinja/expression_parser.h"

#include <algorithm>

namespace millrace::jinja {

// Each function follows one rule of jinja2's parser (jinja2/parser.py, 3.1), also where that differs from Python: chat
// templates are written against it. What recurses into a rule above it passes conditional(), negation(), unary() or
// test(), which count the nesting; loops need no count, as the height of their tree is bounded.
using Nested = TokenStream::Nested;

ExprPtr ExpressionParser::make(ExprKind kind, int line, std::string name) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  expr->name = std::move(name);
  return expr;
}

// Checked while the tree grows and not when it is complete: evaluating a tree and destroying it recurse to its height,
// and the parser throws with the half of the tree that it has.
void ExpressionParser::check_height(const Expr& expr, int height) {
  if (height > stream_.limits().max_expression_depth) {
    throw TemplateError{
        StatusCode::kTooLarge,
        fmt::format("an expression is more than {} operations high", stream_.limits().max_expression_depth), expr.line};
  }
}

ExprPtr ExpressionParser::add(ExprPtr parent, ExprPtr child) {
  // A null child keeps its position: kIf and kSlice name their children by index.
  if (child) {
    parent->height = std::max(parent->height, child->height + 1);
    check_height(*parent, parent->height);
  }
  parent->children.push_back(std::move(child));
  return parent;
}

ExprPtr ExpressionParser::binary(ExprPtr left, std::string op, ExprPtr right, int line) {
  return add(add(make(ExprKind::kBinary, line, std::move(op)), std::move(left)), std::move(right));
}

ExprPtr ExpressionParser::conditional() {
  Nested nested(stream_);
  int line = stream_.line();
  ExprPtr value = disjunction();
  while (stream_.skip_name("if")) {
    // Of `a if b if c`, the first part is the value of the second `if`, as in jinja2.
    ExprPtr condition = disjunction();
    ExprPtr other = stream_.skip_name("else") ? conditional() : nullptr;
    value = add(add(add(make(ExprKind::kIf, line), std::move(condition)), std::move(value)), std::move(other));
    line = stream_.line();
  }
  return value;
}

ExprPtr ExpressionParser::disjunction() {
  int line = stream_.line();
  ExprPtr left = conjunction();
  // Left-associative and binary, so that evaluation stops at the first operand that decides.
  while (stream_.skip_name("or")) left = add(add(make(ExprKind::kOr, line), std::move(left)), conjunction());
  return left;
}

ExprPtr ExpressionParser::conjunction() {
  int line = stream_.line();
  ExprPtr left = negation();
  while (stream_.skip_name("and")) left = add(add(make(ExprKind::kAnd, line), std::move(left)), negation());
  return left;
}

ExprPtr ExpressionParser::negation() {
  // Only where a `not` begins: otherwise every comparison would count as a level of nesting.
  if (!stream_.at_name("not")) return comparison();
  Nested nested(stream_);
  int line = stream_.next().line;
  return add(make(ExprKind::kNot, line), negation());
}

ExprPtr ExpressionParser::comparison() {
  int line = stream_.line();
  ExprPtr first = sum();
  ExprPtr chain;
  while (true) {
    std::string op;
    // Operators are whole tokens, so at most one of these equals the current one.
    for (std::string_view candidate : {"==", "!=", "<", "<=", ">", ">="}) {
      if (stream_.at_op(candidate)) op = candidate;
    }
    if (stream_.at_name("in")) op = "in";
    // Two tokens: a `not` that no `in` follows belongs to no comparison.
    if (stream_.at_name("not") && TokenStream::is_name(stream_.look(), "in")) op = "not in";
    if (op.empty()) return chain ? std::move(chain) : std::move(first);
    stream_.next();
    if (op == "not in") stream_.next();
    // One node for a < b < c, as in Python: b is evaluated once.
    if (!chain) chain = add(make(ExprKind::kCompare, line), std::move(first));
    chain = add(std::move(chain), sum());
    chain->ops.push_back(std::move(op));
  }
}

ExprPtr ExpressionParser::sum() {
  int line = stream_.line();
  ExprPtr left = concat();
  while (stream_.at_op("+") || stream_.at_op("-")) {
    std::string op = stream_.next().text;
    // In this sequence `~` binds tighter than `+`, unlike in most languages.
    left = binary(std::move(left), std::move(op), concat(), line);
    line = stream_.line();
  }
  return left;
}

ExprPtr ExpressionParser::concat() {
  int line = stream_.line();
  ExprPtr first = product();
  if (!stream_.at_op("~")) return first;
  // One node for all operands: a template that joins a long list of texts does not get a tall tree.
  ExprPtr node = add(make(ExprKind::kConcat, line), std::move(first));
  while (stream_.skip_op("~")) node = add(std::move(node), product());
  return node;
}

ExprPtr ExpressionParser::product() {
  int line = stream_.line();
  ExprPtr left = power();
  while (stream_.at_op("*") || stream_.at_op("/") || stream_.at_op("//") || stream_.at_op("%")) {
    std::string op = stream_.next().text;
    left = binary(std::move(left), std::move(op), power(), line);
    line = stream_.line();
  }
  return left;
}

ExprPtr ExpressionParser::power() {
  int line = stream_.line();
  ExprPtr left = unary(true);
  // Left-associative, unlike Python's.
  while (stream_.skip_op("**")) left = binary(std::move(left), "**", unary(true), line);
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  Nested nested(stream_);
  int line = stream_.line();
  ExprPtr node;
  if (stream_.skip_op("-")) {
    // Without filters: -1|abs is (-1)|abs, and the filter is read below, for the whole.
    node = add(make(ExprKind::kNegate, line), unary(false));
  } else if (stream_.skip_op("+")) {
    node = add(make(ExprKind::kPlus, line), unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? postfix_filters(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::primary() {
  const Token& token = stream_.current();
  switch (token.kind) {
    case TokenKind::kName: {
      stream_.next();
      const std::string& name = token.text;
      ExprPtr node = make(ExprKind::kConstant, token.line);
      // Both spellings, as in jinja2: constants, not names.
      if (name == "true" || name == "True" || name == "false" || name == "False") {
        node->constant = Value::boolean(name == "true" || name == "True");
      } else if (name != "none" && name != "None") {
        node->kind = ExprKind::kName;
        node->name = name;
        // Also names that turn out to be local: the macro looks for its implicit variables alone, and more does no
        // harm.
        names_read_.push_back(name);
      }
      return node;
    }
    case TokenKind::kString:
      return literal_string();
    case TokenKind::kInteger:
    case TokenKind::kFloat: {
      stream_.next();
      ExprPtr node = make(ExprKind::kConstant, token.line);
      node->constant = token.kind == TokenKind::kInteger ? Value::integer(token.integer) : Value::real(token.real);
      return node;
    }
    case TokenKind::kOperator:
      if (token.text == "(") return parenthesized();
      if (token.text == "[") return list();
      if (token.text == "{") return dict();
      [[fallthrough]];
    default:
      stream_.unexpected("an expression");
  }
}

ExprPtr ExpressionParser::literal_string() {
  ExprPtr node = make(ExprKind::kConstant, stream_.line());
  std::string text;
  // Adjacent strings are one, as in Python.
  while (stream_.at_kind(TokenKind::kString)) text += stream_.next().text;
  // Trusted: it is the template's own text, so control tokens in it count.
  node->constant = Value::string(std::move(text), true);
  return node;
}

ExprPtr ExpressionParser::parenthesized() {
  int line = stream_.next().line;
  // Only here may a tuple be empty: without parentheses there would be no expression at all.
  if (stream_.skip_op(")")) return make(ExprKind::kTuple, line);
  ExprPtr node = tuple();
  stream_.expect_op(")");
  return node;
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return stream_.at_kind(TokenKind::kVariableEnd) || stream_.at_kind(TokenKind::kBlockEnd) || stream_.at_op(")") ||
         (!end_name.empty() && stream_.at_name(end_name));
}

ExprPtr ExpressionParser::tuple(bool with_if, std::string_view end_name) {
  int line = stream_.line();
  // In `for x in items if x` the `if` is the loop's filter and must not be taken for an inline one.
  auto item = [&] { return with_if ? expression() : expression_without_if(); };
  if (at_tuple_end(end_name)) stream_.unexpected("an expression");
  ExprPtr first = item();
  // The comma makes the tuple, not the parentheses.
  if (!stream_.at_op(",")) return first;
  ExprPtr node = add(make(ExprKind::kTuple, line), std::move(first));
  while (stream_.skip_op(",")) {
    if (at_tuple_end(end_name)) break;
    node = add(std::move(node), item());
  }
  return node;
}

ExprPtr ExpressionParser::list() {
  ExprPtr node = make(ExprKind::kList, stream_.next().line);
  while (!stream_.at_op("]")) {
    if (!node->children.empty()) stream_.expect_op(",");
    if (stream_.at_op("]")) break;
    node = add(std::move(node), expression());
  }
  stream_.expect_op("]");
  return node;
}

ExprPtr ExpressionParser::dict() {
  ExprPtr node = make(ExprKind::kDict, stream_.next().line);
  while (!stream_.at_op("}")) {
    if (!node->children.empty()) stream_.expect_op(",");
    if (stream_.at_op("}")) break;
    node = add(std::move(node), expression());
    stream_.expect_op(":");
    node = add(std::move(node), expression());
  }
  stream_.expect_op("}");
  return node;
}

ExprPtr ExpressionParser::postfix(ExprPtr node) {
  while (true) {
    if (stream_.at_op(".") || stream_.at_op("[")) {
      node = subscript(std::move(node));
    } else if (stream_.at_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

// Filters and tests end an operand, after its attributes and calls. What a filter returns may be called, but an
// attribute of it needs parentheses: jinja2 has the same two loops.
ExprPtr ExpressionParser::postfix_filters(ExprPtr node) {
  while (true) {
    if (stream_.at_op("|")) {
      stream_.next();
      node = filter(std::move(node));
    } else if (stream_.at_name("is")) {
      node = test(std::move(node));
    } else if (stream_.at_op("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr node) {
  int line = stream_.line();
  if (stream_.skip_op(".")) {
    const Token& member = stream_.next();
    if (member.kind == TokenKind::kName) return add(make(ExprKind::kAttribute, line, member.text), std::move(node));
    // items.0 is items[0].
    if (member.kind != TokenKind::kInteger) {
      fail_at(member.line, "unexpected {} after '.', wanted a name or a number", describe(member));
    }
    ExprPtr index = make(ExprKind::kConstant, member.line);
    index->constant = Value::integer(member.integer);
    return add(add(make(ExprKind::kItem, line), std::move(node)), std::move(index));
  }
  stream_.expect_op("[");
  std::vector<ExprPtr> arguments;
  while (!stream_.at_op("]")) {
    if (!arguments.empty()) stream_.expect_op(",");
    // x[a, b] is indexed by a tuple, x[a] by the value; x[] by the empty tuple.
    arguments.push_back(subscribed());
  }
  stream_.expect_op("]");
  ExprPtr index;
  if (arguments.size() == 1) {
    index = std::move(arguments[0]);
  } else {
    index = make(ExprKind::kTuple, line);
    for (ExprPtr& argument : arguments) {
      // Evaluation knows a slice as the whole index only, see ast.h.
      if (argument->kind == ExprKind::kSlice) fail_at(line, "a slice within a tuple index is not supported");
      index = add(std::move(index), std::move(argument));
    }
  }
  return add(add(make(ExprKind::kItem, line), std::move(node)), std::move(index));
}

ExprPtr ExpressionParser::subscribed() {
  ExprPtr slice = make(ExprKind::kSlice, stream_.line());
  ExprPtr start;
  if (!stream_.at_op(":")) {
    start = expression();
    if (!stream_.at_op(":")) return start;
  }
  stream_.next();
  auto at_end = [&] { return stream_.at_op("]") || stream_.at_op(","); };
  ExprPtr stop = at_end() || stream_.at_op(":") ? nullptr : expression();
  ExprPtr step;
  if (stream_.skip_op(":") && !at_end()) step = expression();
  return add(add(add(std::move(slice), std::move(start)), std::move(stop)), std::move(step));
}

ExprPtr ExpressionParser::call(ExprPtr node) {
  ExprPtr out = add(make(ExprKind::kCall, stream_.line()), std::move(node));
  call_arguments(*out);
  return out;
}

void ExpressionParser::call_arguments(Expr& node) {
  stream_.expect_op("(");
  bool comma = false;
  while (!stream_.at_op(")")) {
    if (comma) stream_.expect_op(",");
    // A trailing comma is allowed.
    if (comma && stream_.at_op(")")) break;
    call_argument(node);
    comma = true;
  }
  stream_.expect_op(")");
}

void ExpressionParser::call_argument(Expr& node) {
  auto more = [&]() -> MoreArguments& {
    if (!node.more) node.more = std::make_unique<MoreArguments>();
    return *node.more;
  };
  // The rules of jinja2's parse_call_args(): after ** nothing more, after * only named arguments and **, after a named
  // one no positional one.
  bool has_list = node.more && node.more->list, has_dict = node.more && node.more->dict;
  // Two tokens decide: f(a == b) has a positional argument.
  bool named = stream_.at_kind(TokenKind::kName) && TokenStream::is_op(stream_.look(), "=");
  bool positional = !named && !stream_.at_op("*") && !stream_.at_op("**");
  if (has_dict || (has_list && (positional || stream_.at_op("*"))) ||
      (positional && node.more && !node.more->named.empty())) {
    fail_at(stream_.line(), "an argument stands after one that it must precede");
  }
  // It points into `more`, which is on the heap and stays while the value is read.
  ExprPtr* slot = nullptr;
  if (stream_.skip_op("*")) {
    slot = &more().list;
  } else if (stream_.skip_op("**")) {
    slot = &more().dict;
  } else if (named) {
    std::string name = stream_.next().text;
    stream_.next();
    more().named.emplace_back(std::move(name), nullptr);
  }
  ExprPtr value = expression();
  // Arguments beyond the positional ones are no children, so add() does not see them.
  node.height = std::max(node.height, value->height + 1);
  check_height(node, node.height);
  if (slot != nullptr) {
    *slot = std::move(value);
  } else if (named) {
    more().named.back().second = std::move(value);
  } else {
    node.children.push_back(std::move(value));
  }
}

std::string ExpressionParser::dotted_name(std::string_view wanted) {
  std::string name = stream_.expect_kind(TokenKind::kName, wanted).text;
  // Names of filters and tests may have dots. Which ones exist is found out when they are evaluated.
  while (stream_.skip_op(".")) name += "." + stream_.expect_kind(TokenKind::kName, wanted).text;
  return name;
}

ExprPtr ExpressionParser::filter(ExprPtr target) {
  int line = stream_.line();
  ExprPtr node = add(make(ExprKind::kFilter, line, dotted_name("the name of a filter")), std::move(target));
  if (stream_.at_op("(")) call_arguments(*node);
  return node;
}

ExprPtr ExpressionParser::filters(ExprPtr target, bool inline_start) {
  ExprPtr node = std::move(target);
  // {% filter upper %}: the name stands where the first | would.
  if (inline_start) node = filter(std::move(node));
  while (stream_.skip_op("|")) node = filter(std::move(node));
  return node;
}

ExprPtr ExpressionParser::test(ExprPtr node) {
  int line = stream_.next().line;
  bool negated = stream_.skip_name("not");
  ExprPtr out = add(make(ExprKind::kTest, line, dotted_name("the name of a test")), std::move(node));
  const Token& token = stream_.current();
  // `x is divisibleby 3` has an argument without parentheses. The keywords that may follow a test without one are
  // excluded; "(" is handled as a call.
  bool starts_argument =
      token.kind == TokenKind::kString || token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
      stream_.at_op("[") || stream_.at_op("{") ||
      (token.kind == TokenKind::kName && token.text != "else" && token.text != "or" && token.text != "and");
  if (stream_.at_op("(")) {
    call_arguments(*out);
  } else if (starts_argument) {
    // `is` is a name for the lexer and would be read as the argument.
    if (stream_.at_name("is")) fail_at(token.line, "tests cannot be chained with 'is'");
    Nested nested(stream_);
    // No filters here: in `x is eq y|upper` the filter belongs to the test's result.
    out = add(std::move(out), postfix(primary()));
  }
  return negated ? add(make(ExprKind::kNot, line), std::move(out)) : std::move(out);
}

}  // namespace millrace::jinja
