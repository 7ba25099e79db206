// Any bytes as a hub's listing: refused with a reason, or files whose names stay below their folder and whose checksums
// are names of blobs. Of these names, a selection has only listed ones.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hub/digest.h"
#include "hub/reference.h"
#include "hub/repository.h"
#include "hub/selection.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void check_selection(const millrace::hub::Repository& repository, const std::string& quant) {
  std::vector<std::string> names;
  for (const auto& file : repository.files) names.push_back(file.name);
  const auto selection = millrace::hub::select_files(names, quant, repository.name);
  check(selection.ok() || !selection.status().message().empty());
  if (!selection.ok()) return;
  for (const std::string& file : selection->files) check(repository.find(file) != nullptr);
  check(!selection->gguf || !selection->gguf->files.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto reference = millrace::hub::parse_reference(text); reference.ok()) {
    check(reference->text() == text && text.find("..") == std::string_view::npos);
  }
  const auto repository = millrace::hub::parse_repository(text, "org/name");
  check(repository.ok() || !repository.status().message().empty());
  if (!repository.ok()) return 0;
  check(millrace::hub::is_commit(repository->commit));
  for (const auto& file : repository->files) {
    const auto below = ("folder/" / std::filesystem::path(file.name)).lexically_normal();
    check(*below.begin() == "folder" && below.has_filename());
    check(file.etag.empty() || millrace::hub::is_checksum(file.etag));
    check(file.size <= millrace::hub::kMaxFileBytes);
  }
  for (const char* quant : {"", "Q4_K_M", "q8_0"}) check_selection(*repository, quant);
  return 0;
}
