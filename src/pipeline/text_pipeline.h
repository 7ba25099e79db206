// The pipelines of text serving: pipelines/text.yaml, pipelines/omni.yaml whose answers are spoken too, or another of
// these shapes. Their stages have no args: they take the model that the command line names. The server tokenizes; it
// hands prompts as ids to the entry stage, and text deltas come back from the terminal, samples from the other one.
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
inline constexpr std::string_view kTalkWorker = "talk";
inline constexpr std::string_view kVocodeWorker = "vocode";

// True where a stage works with the model of the command line: then all of it must be of one of these shapes.
bool is_text_pipeline(const PipelineSpec& spec);

// The stage that generates, of a text pipeline that was checked.
const StageSpec& generating_stage(const PipelineSpec& spec);

// kInvalidArgument, with file and line, where the shape is another, or where `dp` is given for a stage that joins from
// another host. 0: as in the file.
Status check_text_pipeline(const PipelineSpec& spec, const std::string& file, int dp);

// --dp and --dp-policy replace what the file has. After hash(): a process that joins reads the file alone.
void override_replicas(PipelineSpec& spec, int dp, const std::string& policy);

// The pipelines of `millrace serve --model DIR`, built in: that of a model whose answers are spoken, and of all others.
std::string_view builtin_pipeline(bool speaks);
const char* builtin_file(bool speaks);  // in messages

// A pipeline whose prompts the server may tokenize itself and whose answers are text: one stage `generate` that streams
// to a terminal `detokenize`, its next one; before it nothing, or one stage `tokenize`. Where it streams to a stage
// `talk` too, which streams to a terminal `vocode`, answers are spoken. Of any shape else: nullopt.
struct TextShape {
  const StageSpec* tokenize = nullptr;  // null: the server alone does it
  const StageSpec* generate = nullptr;
  const StageSpec* detokenize = nullptr;
  const StageSpec* talk = nullptr;    // null: answers are text alone,
  const StageSpec* vocode = nullptr;  // as here
};
std::optional<TextShape> text_shape(const PipelineSpec& spec);

// That of `file`, or where it is empty the one that is built in. `speaks`: the model of the command line does.
Result<PipelineSpec> load_text_or_file(const std::string& file, bool speaks, const Library& library);

}  // namespace millrace
