#include "hub/repository.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "formats/safetensors.h"
#include "hub/digest.h"
#include "hub/reference.h"

namespace millrace::hub {
namespace {

Status read_size(const Json& from, const std::string& what, uint64_t& out) {
  int64_t size = -1;
  if (json_find(from, "size") == nullptr) return ok_status();
  RETURN_IF_ERROR(json_read(from, "size", size).with_prefix(what));
  if (size < 0 || static_cast<uint64_t>(size) > kMaxFileBytes) {
    return invalid_argument("{}: size is {}; wanted 0 to {}", what, size, kMaxFileBytes);
  }
  out = static_cast<uint64_t>(size);
  return ok_status();
}

Result<RemoteFile> parse_file(const Json& from, const std::string& what) {
  RemoteFile out;
  if (!from.is_object())
    return invalid_argument("{}: a file is of type {}; wanted an object", what, json_type_name(from));
  RETURN_IF_ERROR(json_read(from, "rfilename", out.name).with_prefix(what));
  RETURN_IF_ERROR(check_file_name(out.name).with_prefix(what));
  const std::string file = what + ": " + out.name;
  RETURN_IF_ERROR(read_size(from, file, out.size));
  const Json* large = json_find(from, "lfs");
  if (large != nullptr && large->is_object()) {
    RETURN_IF_ERROR(json_read(*large, "sha256", out.etag).with_prefix(file));
    RETURN_IF_ERROR(read_size(*large, file, out.size));
  } else {
    RETURN_IF_ERROR(json_read(from, "blobId", out.etag).with_prefix(file));
  }
  if (out.etag.empty() || is_checksum(out.etag)) return out;
  return invalid_argument("{}: its checksum is {}; wanted 64 or 40 hexadecimal digits", file, quoted_name(out.etag));
}

// Of a header field: without quotes, and without the mark of a weak one.
std::string plain_etag(std::string text) {
  if (text.starts_with("W/")) text.erase(0, 2);
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
  return text;
}

Status take_fields(const HubAnswer& answer, const std::string& what, RemoteFile& file) {
  const std::string linked = answer.field("x-linked-etag");
  const std::string etag = plain_etag(linked.empty() ? answer.field("etag") : linked);
  if (!is_checksum(etag)) {
    return invalid_argument("{}: the hub's ETag is {}; wanted a checksum of 64 or 40 hexadecimal digits", what,
                            quoted_name(etag));
  }
  const std::string size =
      answer.field("x-linked-size").empty() ? answer.field("content-length") : answer.field("x-linked-size");
  if (size.empty() || size.size() > 14 ||
      !std::all_of(size.begin(), size.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return invalid_argument("{}: the hub gives the size {}; wanted a number of bytes", what, quoted_name(size));
  }
  file.etag = etag;
  file.size = std::stoull(size);
  return ok_status();
}

}  // namespace

const RemoteFile* Repository::find(std::string_view file) const {
  const auto found = std::find_if(files.begin(), files.end(), [&](const RemoteFile& one) { return one.name == file; });
  return found == files.end() ? nullptr : &*found;
}

Status check_file_name(std::string_view name) {
  const auto fault = [&] {
    return invalid_argument("a file is named {}; wanted a path of at most {} bytes below the repository, without '..'",
                            quoted_name(name), kMaxFileNameBytes);
  };
  if (name.empty() || name.size() > kMaxFileNameBytes) return fault();
  if (std::any_of(name.begin(), name.end(),
                  [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\\' || c == '\x7f'; })) {
    return fault();
  }
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == "." || part == ".." || part.size() > kMaxFileNamePartBytes) return fault();
    begin = end + 1;
  }
  return ok_status();
}

Result<Repository> parse_repository(std::string_view text, const std::string& name) {
  const std::string what = fmt::format("the hub's listing of {}", name);
  auto parsed = parse_json(text);
  if (!parsed.ok()) return parsed.status().with_prefix(what);
  if (!parsed->is_object())
    return invalid_argument("{} is of type {}; wanted an object", what, json_type_name(*parsed));
  Repository out{.name = name};
  RETURN_IF_ERROR(json_read(*parsed, "sha", out.commit).with_prefix(what));
  if (!is_commit(out.commit)) {
    return invalid_argument("{}: sha is {}; wanted a commit of 40 hexadecimal digits", what, quoted_name(out.commit));
  }
  const Json* files = json_find(*parsed, "siblings");
  if (files == nullptr || !files->is_array() || files->size() > kMaxRepositoryFiles) {
    return invalid_argument("{}: siblings is no list of at most {} files", what, kMaxRepositoryFiles);
  }
  for (const Json& one : *files) {
    ASSIGN_OR_RETURN(RemoteFile file, parse_file(one, what));
    out.files.push_back(std::move(file));
  }
  return out;
}

std::string Hub::file_url(const Connection& connection, const Repository& repository, const std::string& file) const {
  std::string path;
  for (std::size_t begin = 0; begin <= file.size();) {
    const std::size_t end = std::min(file.find('/', begin), file.size());
    path += "/" + connection.escape(file.substr(begin, end - begin));
    begin = end + 1;
  }
  return fmt::format("{}/{}/resolve/{}{}", settings_.endpoint, repository.name, repository.commit, path);
}

Result<std::string> Hub::fetch_text(Connection& connection, const HubRequest& request, const std::string& what,
                                    std::size_t most) const {
  std::string text;
  const auto on_head = [&](const HubAnswer&) { return text.clear(), ok_status(); };
  const auto on_body = [&](std::span<const std::byte> bytes) {
    if (text.size() + bytes.size() > most)
      return error(StatusCode::kTooLarge, "{}: over {} bytes; wanted fewer", what, most);
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return ok_status();
  };
  RETURN_IF_ERROR(with_retries(policy_, control_, [&]() -> Attempt {
    const auto answer = connection.perform(request, on_head, on_body);
    if (!answer.ok()) return {answer.status(), answer.status().code() == StatusCode::kUnavailable};
    if (answer->status == 200 || answer->status == 206) return {ok_status()};
    return {status_of(*answer, what), is_passing(*answer), false, answer->retry_after_s};
  }));
  return text;
}

Result<Repository> Hub::fetch_repository(Connection& connection, const std::string& name,
                                         const std::string& revision) const {
  const HubRequest request{.url = fmt::format("{}/api/models/{}/revision/{}?blobs=true", settings_.endpoint, name,
                                              connection.escape(revision))};
  const std::string what = revision == "main" ? name : fmt::format("{} at {}", name, revision);
  ASSIGN_OR_RETURN(const std::string text, fetch_text(connection, request, what, kMaxListingBytes));
  return parse_repository(text, name);
}

Result<std::string> Hub::fetch_start(Connection& connection, const Repository& repository, const std::string& file,
                                     uint64_t count) const {
  const HubRequest request{.url = file_url(connection, repository, file), .last = count - 1};
  std::string out;
  const std::string what = repository.name + "/" + file;
  // A server without ranges sends all of it; what is wanted has come by then.
  const Status enough(StatusCode::kConflict, "enough");
  const auto on_head = [&](const HubAnswer&) { return out.clear(), ok_status(); };
  const auto on_body = [&](std::span<const std::byte> bytes) {
    const std::size_t taken = std::min<std::size_t>(bytes.size(), count - out.size());
    out.append(reinterpret_cast<const char*>(bytes.data()), taken);
    return taken < bytes.size() ? enough : ok_status();
  };
  RETURN_IF_ERROR(with_retries(policy_, control_, [&]() -> Attempt {
    const auto answer = connection.perform(request, on_head, on_body);
    if (!answer.ok() && answer.status().code() == enough.code()) return {ok_status()};
    if (!answer.ok()) return {answer.status(), answer.status().code() == StatusCode::kUnavailable};
    if (answer->status == 200 || answer->status == 206) return {ok_status()};
    return {status_of(*answer, what), is_passing(*answer), false, answer->retry_after_s};
  }));
  return out;
}

Status Hub::complete(Connection& connection, const Repository& repository, RemoteFile& file) const {
  if (!file.etag.empty()) return ok_status();
  const std::string what = repository.name + "/" + file.name;
  return with_retries(policy_, control_, [&]() -> Attempt {
    const auto nothing = [](const HubAnswer&) { return ok_status(); };
    const auto answer = connection.perform({.url = file_url(connection, repository, file.name), .head = true}, nothing,
                                           [](std::span<const std::byte>) { return ok_status(); });
    if (!answer.ok()) return {answer.status(), answer.status().code() == StatusCode::kUnavailable};
    if (answer->status >= 400) return {status_of(*answer, what), is_passing(*answer), false, answer->retry_after_s};
    return {take_fields(*answer, what, file)};
  });
}

}  // namespace millrace::hub
