// The JSON Schema of an output that is a tool call, or an array of them: {"name": ..., "arguments": {...}}.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "base/json.h"
#include "wire/output_parsing.h"

namespace millrace::api {

struct ForcedCall {
  std::string name;     // the one function that may be called; empty: any
  bool single = false;  // one call, without an array around it
  std::string member;   // what the model calls the arguments
};

// `tools`: checked. `text`: the body they stand in, for the sequence of their properties. A `$ref` of a function's
// parameters goes on naming the same schema, which stands deeper now.
std::string forced_call_schema(const Json& tools, const std::string& text, const ForcedCall& forced);

// The structural tags (grammar/structural_tag.h) of a text with calls of the tools of the body `text`, in the form of
// `dialect`, kQwen or kMistral. The arguments of a strict tool keep its schema, those of the others are any object.
// `document`: the text of a JSON Schema; the text is a document of it, or calls alone. null: the text is free.
std::string guarded_calls(const std::string& text, wire::ToolDialect dialect, const std::string* document = nullptr);

}  // namespace millrace::api
