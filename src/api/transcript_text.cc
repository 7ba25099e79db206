#include "api/transcript_text.h"

#include <algorithm>

namespace millrace::api {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

}  // namespace

std::string_view trimmed_transcript(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string_view append_transcript(std::string& so_far, std::string_view fresh) {
  if (so_far.empty()) fresh.remove_prefix(std::min(fresh.find_first_not_of(kSpace), fresh.size()));
  so_far += fresh;
  return fresh;
}

Status check_transcript_end(const ChoiceState& choice, int64_t context_length, std::optional<int64_t> limit) {
  RETURN_IF_ERROR(check_not_aborted(choice, "transcript"));
  if (choice.finish->reason != wire::FinishReason::kLength) return ok_status();
  const wire::Usage& usage = choice.usage;
  const bool in_context = int64_t{usage.prompt_tokens} + usage.completion_tokens < context_length;
  // Fewer than the limit, within the context: the KV memory ended it.
  if (limit && in_context && usage.completion_tokens >= *limit) {
    return internal_error("the transcript has more than {} tokens, the limit for audio of this length", *limit);
  }
  // The words by which error.h finds that it is the context.
  return error(
      StatusCode::kTooLarge,
      "This model's maximum context length is {} tokens. However, the prompt has {} tokens, and its transcript "
      "does not end within {}. Send shorter audio{}.",
      context_length, usage.prompt_tokens, in_context ? "the KV cache" : "the others",
      limit ? "" : ", or max_tokens for the text up to there");
}

}  // namespace millrace::api
