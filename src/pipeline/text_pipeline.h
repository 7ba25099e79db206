// The pipeline of text serving: pipelines/text.yaml, or another of that shape. Its stages `generate` and `detokenize`
// have no args: they take the model that the command line names. The server tokenizes; it hands prompts as ids to the
// entry stage, and text deltas come back from the terminal.
//
// Thread safety: free functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "pipeline/spec.h"

namespace millrace {

inline constexpr std::string_view kTokenizeWorker = "tokenize";
inline constexpr std::string_view kGenerateWorker = "generate";
inline constexpr std::string_view kDetokenizeWorker = "detokenize";

// True where a stage generates or detokenizes with the model of the command line: then all of it must be of that shape.
bool is_text_pipeline(const PipelineSpec& spec);

// The stage that generates, of a text pipeline that was checked.
const StageSpec& generating_stage(const PipelineSpec& spec);

// kInvalidArgument, with file and line, where the shape is another, or where `dp` is given for a stage that joins from
// another host. 0: as in the file.
Status check_text_pipeline(const PipelineSpec& spec, const std::string& file, int dp);

// --dp and --dp-policy replace what the file has. After hash(): a process that joins reads the file alone.
void override_replicas(PipelineSpec& spec, int dp, const std::string& policy);

// The pipeline of `millrace serve --model DIR`: pipelines/text.yaml, built in.
std::string_view builtin_text_pipeline();
inline constexpr const char* kBuiltinFile = "pipelines/text.yaml";  // in messages

// A pipeline whose prompts the server may tokenize itself and whose answers are text: one stage `generate` that streams
// to its one next stage, a terminal `detokenize`; before it nothing, or one stage `tokenize`. Of any shape else:
// nullopt.
struct TextShape {
  const StageSpec* tokenize = nullptr;  // null: the server alone does it
  const StageSpec* generate = nullptr;
  const StageSpec* detokenize = nullptr;
};
std::optional<TextShape> text_shape(const PipelineSpec& spec);

// That of `file`, or the one that is built in where it is empty.
Result<PipelineSpec> load_text_or_file(const std::string& file, const Library& library);

}  // namespace millrace
