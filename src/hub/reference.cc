#include "hub/reference.h"

#include <algorithm>

#include "formats/safetensors.h"

namespace millrace::hub {
namespace {

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }
bool is_name_char(char c) { return is_word(c) || c == '-' || c == '.'; }

bool is_name(std::string_view name, std::size_t most) {
  return !name.empty() && name.size() <= most && std::all_of(name.begin(), name.end(), is_name_char) &&
         is_word(name.front()) && is_word(name.back()) && name.find("..") == std::string_view::npos;
}

// "--" separates ORG and NAME in the cache.
bool is_repository_part(std::string_view name) {
  return is_name(name, kMaxNameBytes) && name.find("--") == std::string_view::npos && !name.ends_with(".git");
}

}  // namespace

Result<ModelReference> parse_reference(std::string_view text) {
  ModelReference out;
  const std::size_t colon = text.find(':');
  const std::string_view repository = text.substr(0, colon);
  const std::size_t slash = repository.find('/');
  if (slash == std::string_view::npos || !is_repository_part(repository.substr(0, slash)) ||
      !is_repository_part(repository.substr(slash + 1))) {
    return invalid_argument(
        "the model is {}; wanted ORG/NAME or ORG/NAME:QUANT, each of at most {} letters, digits, '.', '_' and '-'",
        quoted_name(text), kMaxNameBytes);
  }
  out.repository = repository;
  if (colon == std::string_view::npos) return out;
  out.quant = text.substr(colon + 1);
  if (is_name(out.quant, kMaxQuantBytes)) return out;
  return invalid_argument("the quantization of {} is {}; wanted a name such as Q4_K_M, or a file's name",
                          out.repository, quoted_name(out.quant));
}

Status check_revision(std::string_view revision) {
  const bool plain = !revision.empty() && revision.size() <= kMaxRevisionBytes && revision.front() != '/' &&
                     revision.front() != '-' && revision.back() != '/' &&
                     revision.find("..") == std::string_view::npos && revision.find("//") == std::string_view::npos &&
                     revision.find("/.") == std::string_view::npos && revision.front() != '.' &&
                     std::all_of(revision.begin(), revision.end(), [](char c) { return is_name_char(c) || c == '/'; });
  if (plain) return ok_status();
  return invalid_argument("the revision is {}; wanted a branch, a tag or a commit", quoted_name(revision));
}

bool is_commit(std::string_view revision) {
  return revision.size() == 40 && std::all_of(revision.begin(), revision.end(),
                                              [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace millrace::hub
