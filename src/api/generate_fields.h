// The body of POST /generate, read and checked. Lists that belong to a batch have one entry for each prompt.
// Thread safety: free functions and values.
#pragma once

#include <string>
#include <vector>

#include "api/fields.h"
#include "stages/engine.h"

namespace millrace::api {

struct GenerateFields {
  std::vector<Prompt> prompts;
  bool batch = false;                    // the answer is a list even where there is one prompt
  std::vector<SamplingFields> sampling;  // of each prompt; all with the same n
  RequestFields request;
  std::vector<std::string> rids;  // of each prompt
  std::string rid;                // the one name of a whole batch; empty where each prompt has its own
  bool text_in_logprobs = false;
  bool stream = false;
  bool stream_output = false;  // each part once, instead of everything so far

  std::size_t n() const { return static_cast<std::size_t>(sampling.front().n); }
};

// kInvalidArgument or kUnsupported with the field's name first in the message: "sampling_params.top_p is 2; ...".
Result<GenerateFields> read_generate_fields(const Json& body, const std::string& text, const ModelFacts& model);

}  // namespace millrace::api
