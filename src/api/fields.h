// Reading and checking the fields that the generating endpoints share. Every message names the field, the value seen
// and the value wanted. Unknown fields are ignored; fields that would change the answer and are not implemented are
// refused.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "api/error.h"
#include "api/sampling_fields.h"
#include "base/json.h"
#include "http/message.h"
#include "stages/engine.h"

namespace millrace::api {

inline constexpr std::size_t kMaxBodyValues = 512u << 10;  // members and elements of one body, a prompt's ids included
inline constexpr std::size_t kMaxBodyContainers = 16u << 10;  // arrays and objects of one body
inline constexpr double kMaxTimeoutS = 86400;                 // timeout_s and queue_timeout_s

// Where a request stands and how it is known: the same fields in every family.
struct RequestFields {
  std::string extra_key;  // composed of cache_salt and extra_key
  int32_t priority = 0;
  int64_t timeout_ms = 0;
  int64_t queue_timeout_ms = 0;
  std::optional<wire::RemoteKv> remote_kv;  // api/transfer_fields.h
  std::optional<int32_t> replica;           // the scheduler that it is pinned to: the header X-Data-Parallel-Rank
};

// What both OpenAI endpoints read besides their prompt.
struct CommonFields {
  SamplingFields sampling;
  RequestFields request;
  std::string rid;  // "": the server makes one
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool token_ids = false;           // return_token_ids: of the prompts and of the choices
  bool tokens_as_ids = false;       // return_tokens_as_token_ids: in logprobs
  bool prompt_logprobs = false;     // their number is sampling.params.top_logprobs, or less than it
  std::size_t top_logprobs = 0;     // that logprobs of generated tokens show
  std::optional<int64_t> truncate;  // truncate_prompt_tokens: so many of the last tokens of a prompt
  bool wants_ids() const { return token_ids || truncate; }
};

// What JSON costs as a tree goes by its values, not by its bytes: 32 MiB of "{}," would take gigabytes, and hold up the
// bodies behind it for half a minute. Counted in one cheap pass, before there is a tree: of a body, and of the texts in
// its strings that are parsed too.
class ValueCount {
 public:
  void add(std::string_view text);
  // kInvalidArgument over kMaxBodyContainers or kMaxBodyValues of all that was added; `what` it is, for the message.
  Status check(std::string_view what) const;

 private:
  std::size_t values_ = 0, containers_ = 0;
};

// A body that parses to an object of bounded size, or the reason why not.
Result<Json> parse_body(const std::string& body);

// kInvalidArgument or kUnsupported with the field's name first in the message.
// `text`: of the body, as it came.
Result<CommonFields> read_common(const Json& body, const std::string& text, const ModelFacts& model,
                                 const SamplingDialect& dialect);
Result<RequestFields> read_request_fields(const Json& body);
// `truncate_prompt_tokens`: so many of the last tokens of a prompt; -1: as many as the context holds; nullopt: all.
Result<std::optional<int64_t>> read_truncation(const Json& body, const ModelFacts& model);
// `prompt_logprobs`, after `logprobs` was read: how many of the likeliest tokens are shown at each position of the
// prompt. Not in a stream.
Status read_prompt_logprobs(const Json& body, CommonFields& out);
// The header X-Data-Parallel-Rank. Whether there is such a scheduler, the engine knows.
Status read_rank(const http::Request& request, RequestFields& out);

// `key` of `body`, a name of 1 to kMaxNameBytes bytes; absent leaves `out` as it is.
Status read_name(const Json& body, std::string_view key, std::string& out);

// 400, or 404 with code model_not_found.
ApiError field_error(const Status& status);

}  // namespace millrace::api
