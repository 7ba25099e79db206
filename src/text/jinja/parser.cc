#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/expression_parser.h"
#include "text/jinja/lexer.h"
#include "text/jinja/token_stream.h"

namespace millrace::jinja {
namespace {

using Nested = TokenStream::Nested;
using Names = std::initializer_list<std::string_view>;

constexpr std::string_view kUnsupportedTags[] = {"include", "import", "from",  "extends",
                                                 "block",   "super",  "trans", "autoescape"};

class Parser {
 public:
  Parser(std::string_view source, const Limits& limits) : stream_(tokenize(source), limits), expressions_(stream_) {}

  Block run() { return block({}, "", 1); }

 private:
  static std::unique_ptr<Stmt> make(StmtKind kind, int line) {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // Statements up to one of the tags in `ends` (not consumed: the current token is its name); with no `ends` up to the
  // end. `opener` names the tag that is open since line `opened`, for the message.
  Block block(Names ends, std::string_view opener, int opened) {
    Nested nested(stream_);
    Block out;
    while (!stream_.at_kind(TokenKind::kEnd)) {
      const Token& token = stream_.next();
      if (token.kind == TokenKind::kData) {
        out.push_back(make(StmtKind::kText, token.line));
        out.back()->constant = Value::string(token.text, true);
      } else if (token.kind == TokenKind::kVariableBegin) {
        out.push_back(make(StmtKind::kOutput, token.line));
        out.back()->expressions.push_back(expressions_.tuple());
        stream_.expect_kind(TokenKind::kVariableEnd, "'}}'");
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](auto name) { return stream_.at_name(name); })) return out;
        out.push_back(statement(ends));
        stream_.expect_kind(TokenKind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0) {
      fail_at(stream_.line(), "unexpected the end of the template, wanted '{}' for the '{}' of line {}", *ends.begin(),
              opener, opened);
    }
    return out;
  }

  // The body of a tag: `%}` body `{% end`; the end's name is consumed and returned.
  Block body(Names ends, std::string_view opener, std::string* end = nullptr) {
    int opened = stream_.line();
    stream_.skip_op(":");
    stream_.expect_kind(TokenKind::kBlockEnd, "'%}'");
    Block out = block(ends, opener, opened);
    const Token& token = stream_.next();
    if (end != nullptr) *end = token.text;
    return out;
  }

  std::unique_ptr<Stmt> statement(Names ends) {
    const Token& tag = stream_.expect_kind(TokenKind::kName, "the name of a tag");
    const std::string& name = tag.text;
    if (name == "if") return if_statement(tag.line);
    if (name == "for") return for_statement(tag.line);
    if (name == "set") return set_statement(tag.line);
    if (name == "macro") return macro_statement(tag.line);
    if (name == "call") return call_statement(tag.line);
    if (name == "filter") return filter_statement(tag.line);
    if (name == "with") return with_statement(tag.line);
    if (name == "print") return print_statement(tag.line);
    if (name == "generation") {
      auto stmt = make(StmtKind::kScope, tag.line);
      stmt->blocks.push_back(detached_body({"endgeneration"}, "generation"));
      return stmt;
    }
    if (name == "break" || name == "continue") {
      if (loop_depth_ == 0) fail_at(tag.line, "'{}' stands outside a loop", name);
      return make(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, tag.line);
    }
    if (std::find(std::begin(kUnsupportedTags), std::end(kUnsupportedTags), name) != std::end(kUnsupportedTags)) {
      fail_at(tag.line, "the tag '{}' is not supported in chat templates", name);
    }
    if (ends.size() == 0) fail_at(tag.line, "unknown tag '{}'", name);
    fail_at(tag.line, "unknown tag '{}', wanted '{}' or another statement", name, *ends.begin());
  }

  std::unique_ptr<Stmt> if_statement(int line) {
    auto stmt = make(StmtKind::kIf, line);
    std::string end;
    do {
      stmt->expressions.push_back(expressions_.tuple(false));
      stmt->blocks.push_back(body({"endif", "elif", "else"}, "if", &end));
    } while (end == "elif");
    if (end == "else") stmt->blocks.push_back(body({"endif"}, "else"));
    return stmt;
  }

  std::unique_ptr<Stmt> for_statement(int line) {
    auto stmt = make(StmtKind::kFor, line);
    stmt->target = target_tuple("in");
    stream_.expect_name("in");
    stmt->expressions.push_back(expressions_.tuple(false, "recursive"));
    stmt->expressions.push_back(stream_.skip_name("if") ? expressions_.expression() : nullptr);
    stmt->flag = stream_.skip_name("recursive");
    std::string end;
    ++loop_depth_;
    stmt->blocks.push_back(body({"endfor", "else"}, "for", &end));
    --loop_depth_;
    stmt->blocks.emplace_back();
    if (end == "else") stmt->blocks.back() = body({"endfor"}, "else");
    return stmt;
  }

  std::unique_ptr<Stmt> set_statement(int line) {
    auto stmt = make(StmtKind::kSet, line);
    if (TokenStream::is_op(stream_.look(), ".")) {
      stmt->target.line = line;
      stmt->target.name = stream_.expect_kind(TokenKind::kName, "a name").text;
      stream_.next();
      stmt->target.member = stream_.expect_kind(TokenKind::kName, "a name").text;
    } else {
      stmt->target = target_tuple({});
    }
    if (stream_.skip_op("=")) {
      stmt->expressions.push_back(expressions_.tuple());
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    stmt->expressions.push_back(expressions_.filters(nullptr, false));
    stmt->blocks.push_back(detached_body({"endset"}, "set"));
    return stmt;
  }

  // A body that becomes a function in Jinja: a break in it cannot leave a loop around it.
  Block detached_body(Names ends, std::string_view opener) {
    int outer = std::exchange(loop_depth_, 0);
    Block out = body(ends, opener);
    loop_depth_ = outer;
    return out;
  }

  void signature(Macro& macro) {
    stream_.expect_op("(");
    while (!stream_.at_op(")")) {
      if (!macro.parameters.empty()) stream_.expect_op(",");
      macro.parameters.push_back(target_name().name);
      if (stream_.skip_op("=")) {
        macro.defaults.push_back(expressions_.expression());
      } else if (!macro.defaults.empty()) {
        fail_at(stream_.line(), "a parameter without a default follows one with a default");
      }
    }
    stream_.expect_op(")");
    for (size_t i = 0; i + macro.defaults.size() < macro.parameters.size(); ++i) {
      if (macro.parameters[i] == "caller") fail_at(stream_.line(), "the parameter 'caller' must have a default");
    }
  }

  // Parses the body and finds out which of the special names it reads; names read stay noted for the macro around it.
  void macro_body(Macro& macro, Names ends, std::string_view opener) {
    auto& names = expressions_.names_read();
    size_t before = names.size();
    macro.body = detached_body(ends, opener);
    auto reads = [&](std::string_view name) {
      return std::find(names.begin() + static_cast<std::ptrdiff_t>(before), names.end(), name) != names.end() &&
             std::find(macro.parameters.begin(), macro.parameters.end(), name) == macro.parameters.end();
    };
    macro.uses_caller = reads("caller");
    macro.uses_kwargs = reads("kwargs");
    macro.uses_varargs = reads("varargs");
  }

  std::unique_ptr<Stmt> macro_statement(int line) {
    auto stmt = make(StmtKind::kMacro, line);
    stmt->macro = std::make_unique<Macro>();
    stmt->macro->name = target_name().name;
    signature(*stmt->macro);
    macro_body(*stmt->macro, {"endmacro"}, "macro");
    return stmt;
  }

  std::unique_ptr<Stmt> call_statement(int line) {
    auto stmt = make(StmtKind::kCall, line);
    stmt->macro = std::make_unique<Macro>();
    stmt->macro->name = "caller";
    if (stream_.at_op("(")) signature(*stmt->macro);
    stmt->expressions.push_back(expressions_.expression());
    if (stmt->expressions[0]->kind != ExprKind::kCall) fail_at(line, "a call block wants a call, as in 'call name()'");
    macro_body(*stmt->macro, {"endcall"}, "call");
    return stmt;
  }

  std::unique_ptr<Stmt> filter_statement(int line) {
    auto stmt = make(StmtKind::kFilter, line);
    stmt->expressions.push_back(expressions_.filters(nullptr, true));
    stmt->blocks.push_back(body({"endfilter"}, "filter"));
    return stmt;
  }

  std::unique_ptr<Stmt> with_statement(int line) {
    auto stmt = make(StmtKind::kWith, line);
    while (!stream_.at_kind(TokenKind::kBlockEnd)) {
      if (!stmt->targets.empty()) stream_.expect_op(",");
      stmt->targets.push_back(target_tuple({}));
      stream_.expect_op("=");
      stmt->expressions.push_back(expressions_.expression());
    }
    stmt->blocks.push_back(body({"endwith"}, "with"));
    return stmt;
  }

  std::unique_ptr<Stmt> print_statement(int line) {
    auto stmt = make(StmtKind::kOutput, line);
    while (!stream_.at_kind(TokenKind::kBlockEnd)) {
      if (!stmt->expressions.empty()) stream_.expect_op(",");
      stmt->expressions.push_back(expressions_.expression());
    }
    return stmt;
  }

  Target target_name() {
    const Token& token = stream_.expect_kind(TokenKind::kName, "a name to assign to");
    for (std::string_view word : {"true", "false", "none", "True", "False", "None"}) {
      if (token.text == word) fail_at(token.line, "can't assign to '{}'", token.text);
    }
    Target target;
    target.name = token.text;
    target.line = token.line;
    return target;
  }

  Target target_item() {
    if (!stream_.at_op("(")) return target_name();
    Nested nested(stream_);
    stream_.next();
    Target target;
    if (stream_.at_op(")")) {
      target.is_tuple = true;
      target.line = stream_.line();
    } else {
      target = target_tuple({});
    }
    stream_.expect_op(")");
    return target;
  }

  // `a` or `a, b, (c, d)`.
  Target target_tuple(std::string_view end_name) {
    Target first = target_item();
    if (!stream_.at_op(",")) return first;
    Target tuple;
    tuple.is_tuple = true;
    tuple.line = first.line;
    tuple.items.push_back(std::move(first));
    while (stream_.skip_op(",")) {
      bool end = stream_.at_op("=") || stream_.at_op(")") || stream_.at_kind(TokenKind::kBlockEnd) ||
                 (!end_name.empty() && stream_.at_name(end_name));
      if (end) break;
      tuple.items.push_back(target_item());
    }
    return tuple;
  }

  TokenStream stream_;
  ExpressionParser expressions_;
  int loop_depth_ = 0;
};

}  // namespace

Block parse_template(std::string_view source, const Limits& limits) { return Parser(source, limits).run(); }

}  // namespace millrace::jinja
