// The parsed template: two kinds of nodes, expressions and statements. What `children` and the other fields hold
// depends on the node's kind and is described beside it.
//
// Owner: its Template. Thread safety: immutable after parsing, so any number of renders may read it at once.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace millrace::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Block = std::vector<std::unique_ptr<Stmt>>;

enum class ExprKind : uint8_t {
  kConstant,   // constant
  kName,       // name
  kList,       // children
  kTuple,      // children
  kDict,       // children: key, value, key, value...
  kAttribute,  // children[0] . name
  kItem,       // children[0] [ children[1] ]
  kSlice,      // only as children[1] of kItem: start, stop, step, each may be null
  kCall,       // children[0] ( children[1...], arguments )
  kFilter,     // children[0] | name ( children[1...], arguments ); children[0] is null inside a filter block
  kTest,       // children[0] is name ( children[1...], arguments )
  kNegate,     // - children[0]
  kPlus,       // + children[0]
  kNot,        // not children[0]
  kAnd,        // children[0] and children[1]
  kOr,
  kBinary,   // children[0] op children[1]; name holds the operator
  kConcat,   // children joined by ~
  kCompare,  // children[0] ops[0] children[1] ops[1] children[2] ...
  kIf,       // children: condition, value, other (may be null)
};

// Call arguments beyond the positional ones.
struct MoreArguments {
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr list;  // *args
  ExprPtr dict;  // **kwargs
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int height = 1;  // of the tree from here down; bounded by Limits::max_expression_depth
  std::string name;
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<std::string> ops;
  std::unique_ptr<MoreArguments> more;
};

enum class StmtKind : uint8_t {
  kText,      // constant: a trusted string
  kOutput,    // expressions, printed one after the other
  kIf,        // expressions: conditions; blocks: one for each, then possibly one for else
  kFor,       // target; expressions: iterable, filter (or null); blocks: body, else; flag: recursive
  kSet,       // target; expressions: value
  kSetBlock,  // target; expressions: filter chain (or null); blocks: body
  kMacro,     // macro
  kCall,      // macro: the caller; expressions: the call
  kFilter,    // expressions: the filter chain; blocks: body
  kWith,      // targets; expressions: their values; blocks: body
  kScope,     // blocks: body (generation)
  kBreak,
  kContinue,
};

// What `set` and `for` assign to: a name, a namespace's member, or a tuple of targets.
struct Target {
  std::string name;
  std::string member;  // of the namespace `name`, when not empty
  std::vector<Target> items;
  bool is_tuple = false;
  int line = 0;
};

struct Macro {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Block body;
  bool uses_caller = false;
  bool uses_kwargs = false;
  bool uses_varargs = false;
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  bool flag = false;
  Value constant;
  Target target;
  std::vector<Target> targets;  // kWith
  std::vector<ExprPtr> expressions;
  std::vector<Block> blocks;
  std::unique_ptr<Macro> macro;
};

}  // namespace millrace::jinja
