// Template text to tokens, with Jinja's whitespace control applied.
//
// trim_blocks and lstrip_blocks are on and the last newline of the source is dropped, as transformers sets up Jinja.
// Line ends become \n. Comments and raw blocks are resolved here. Line numbers start at 1. Thread safety: a free
// function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace millrace::jinja {

enum class TokenKind : uint8_t {
  kData,  // text between tags
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // names, operators, data; strings with their escapes resolved
  Int integer = 0;
  double real = 0;
};

// Ends with a kEnd token. Throws TemplateError.
std::vector<Token> tokenize(std::string_view source);

// How a token is called in messages: "'endfor'", "a string", "the end of the template".
std::string describe(const Token& token);

}  // namespace millrace::jinja
