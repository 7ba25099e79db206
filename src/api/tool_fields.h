// How a chat request wants its output read and shown: tools, tool_choice, parallel_tool_calls, and the fields of
// reasoning. They become wire::OutputParsing, and a grammar where a call is forced.
//
// Thread safety: values, and free functions.
#pragma once

#include <set>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"
#include "wire/generation.h"

namespace millrace::api {

// What of the parsed output an answer shows.
struct OutputView {
  bool parsed = false;             // events come instead of text
  bool one_call = false;           // parallel_tool_calls: false; those behind the first are left out
  bool reasoning_field = false;    // the answer has reasoning_content, be it null
  bool reasoning_shown = true;     // with what is in it
  bool reasoning_streamed = true;  // as it comes; else when it is complete
};

// Reads the fields of a chat request, after the other sampling fields, and sets `sampling.parsing` and where a call is
// forced `sampling.grammar`. `text`: of the body, as it came.
Result<OutputView> read_output_fields(const Json& body, const std::string& text, const ModelFacts& model,
                                      wire::SamplingParams& sampling);

// Whether the request forces a call: tool_choice "required", or a function by name.
bool forces_call(const Json& body);

// kInvalidArgument where the tool `where`, "tools[2]", has a name that is none or that is in `names`; else it is added.
Status check_tool_name(const std::string& name, const std::string& where, std::set<std::string>& names);

// Of endpoints without a conversation: the fields of tools are refused, but for values that ask for none.
Status refuse_tools(const Json& body);

}  // namespace millrace::api
