#include "api/multipart.h"

#include <algorithm>
#include <utility>

#include "base/trimmed.h"
#include "http/message.h"

namespace millrace::api {
namespace {

constexpr std::size_t kShownNameBytes = 64;

// A quoted string at the beginning of `text`, which keeps what is behind it. Browsers write %22 for a quote inside;
// other clients write \".
Result<std::string> take_quoted(std::string_view& text) {
  std::string out;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return out;
    }
    if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == '"' || text[i + 1] == '\\')) ++i;
    out += text[i];
  }
  return invalid_argument("a header field has a quote that is not closed");
}

struct FieldValue {
  std::string_view value;                                    // before the first ';'
  std::vector<std::pair<std::string, std::string>> members;  // name (as written), value
};

// value; name=token; name="quoted"
Result<FieldValue> split_field(std::string_view text) {
  FieldValue out;
  const std::size_t end = std::min(text.find(';'), text.size());
  out.value = trimmed(text.substr(0, end), kBlanks);
  text.remove_prefix(end);
  while (!text.empty()) {
    text = trimmed(text.substr(1), kBlanks);  // ';'
    if (text.empty()) break;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) return invalid_argument("a parameter of a header field has no value");
    const std::string name(trimmed(text.substr(0, equals), kBlanks));
    text = trimmed(text.substr(equals + 1), kBlanks);
    std::string value;
    if (!text.empty() && text.front() == '"') {
      ASSIGN_OR_RETURN(value, take_quoted(text));
      text = trimmed(text, kBlanks);
    } else {
      const std::size_t length = std::min(text.find(';'), text.size());
      value = std::string(trimmed(text.substr(0, length), kBlanks));
      text.remove_prefix(length);
    }
    if (!text.empty() && text.front() != ';') return invalid_argument("a header field goes on behind a quoted value");
    out.members.emplace_back(name, std::move(value));
  }
  return out;
}

const std::string* find_member(const FieldValue& field, std::string_view name) {
  for (const auto& [key, value] : field.members) {
    if (http::equals_ignore_case(key, name)) return &value;
  }
  return nullptr;
}

Result<std::string> read_boundary(std::string_view content_type) {
  ASSIGN_OR_RETURN(const FieldValue field, split_field(content_type));
  if (!http::equals_ignore_case(field.value, "multipart/form-data")) {
    return error(StatusCode::kUnsupported, "the header Content-Type is '{}'; wanted multipart/form-data",
                 content_type.substr(0, kShownNameBytes));
  }
  const std::string* boundary = find_member(field, "boundary");
  if (boundary == nullptr || boundary->empty() || boundary->size() > kMaxBoundaryBytes) {
    return invalid_argument("the header Content-Type has a boundary of {} bytes; wanted 1 to {}",
                            boundary == nullptr ? 0 : boundary->size(), kMaxBoundaryBytes);
  }
  return *boundary;
}

// The header fields of a part, without the empty line.
Status read_head(std::string_view head, std::size_t index, FormPart& part) {
  while (!head.empty()) {
    const std::size_t end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(head.size(), end + 2));
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return invalid_argument("part {} has a header field without a colon", index);
    if (!http::equals_ignore_case(trimmed(line.substr(0, colon), kBlanks), "content-disposition")) continue;
    ASSIGN_OR_RETURN(const FieldValue field, split_field(line.substr(colon + 1)));
    const std::string* name = find_member(field, "name");
    if (!http::equals_ignore_case(field.value, "form-data") || name == nullptr) continue;
    part.name = *name;
    if (const std::string* filename = find_member(field, "filename")) part.filename = *filename;
  }
  if (part.name.empty()) return invalid_argument("part {} has no name; wanted Content-Disposition: form-data", index);
  return ok_status();
}

}  // namespace

Result<std::vector<FormPart>> read_form(std::string_view content_type, std::string_view body) {
  ASSIGN_OR_RETURN(const std::string boundary, read_boundary(content_type));
  const std::string delimiter = "\r\n--" + boundary;
  std::vector<FormPart> parts;
  // The first delimiter begins the body; all others have a line break before them.
  if (!body.starts_with(std::string_view(delimiter).substr(2))) {
    return invalid_argument("the body does not begin with the boundary of its Content-Type");
  }
  body.remove_prefix(delimiter.size() - 2);
  while (!body.starts_with("--")) {
    if (parts.size() == kMaxFormParts) return invalid_argument("the form has over {} parts", kMaxFormParts);
    if (!body.starts_with("\r\n")) return invalid_argument("part {} does not begin on a line", parts.size());
    body.remove_prefix(2);
    const std::size_t head = body.substr(0, kMaxPartHeadBytes + 4).find("\r\n\r\n");
    if (head == std::string_view::npos) {
      return invalid_argument("part {} has no end of its header fields in {} bytes", parts.size(), kMaxPartHeadBytes);
    }
    FormPart part;
    RETURN_IF_ERROR(read_head(body.substr(0, head), parts.size(), part));
    body.remove_prefix(head + 4);
    const std::size_t end = body.find(delimiter);
    if (end == std::string_view::npos) {
      return invalid_argument("part {} ('{}') is not ended by the boundary", parts.size(),
                              part.name.substr(0, kShownNameBytes));
    }
    part.content = body.substr(0, end);
    body.remove_prefix(end + delimiter.size());
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace millrace::api
