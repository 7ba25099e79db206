#include "discovery/etcd_name.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace millrace {
namespace {

constexpr std::string_view kPlain = "etcd://", kTls = "etcds://";

bool is_name_byte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
}

// "10.0.0.1:2379", "[::1]:2379" or "etcd.example:2379".
Status check_member(const std::string& member) {
  const std::size_t colon = member.rfind(':');
  if (member.find('@') != std::string::npos) {
    return invalid_argument("a user or a password in it, which others would see; wanted them by --discovery-user-file");
  }
  int port = 0;
  const char* const end = member.data() + member.size();
  const bool has_port = colon != std::string::npos && colon > 0 && colon + 1 < member.size();
  const auto read = has_port ? std::from_chars(member.data() + colon + 1, end, port)
                             : std::from_chars_result{member.data(), std::errc::invalid_argument};
  const bool host_fits =
      has_port && std::all_of(member.begin(), member.begin() + static_cast<std::ptrdiff_t>(colon),
                              [](char c) { return is_name_byte(c) || c == '[' || c == ']' || c == ':'; });
  if (!host_fits || read.ec != std::errc() || read.ptr != end || port < 1 || port > 65535) {
    return invalid_argument("the member '{}'; wanted HOST:PORT", member.substr(0, 64));
  }
  return ok_status();
}

}  // namespace

bool is_etcd_name(std::string_view text) { return text.starts_with(kPlain) || text.starts_with(kTls); }

Result<EtcdName> parse_etcd_name(const std::string& text) {
  const auto wrong = [&](std::string_view why) {
    return invalid_argument("'{}': {}; such as etcd://10.0.0.1:2379/NAME", text.substr(0, 256), why);
  };
  if (!is_etcd_name(text)) return wrong("wanted etcd:// or etcds:// at its start");
  const bool tls = text.starts_with(kTls);
  const std::string rest = text.substr((tls ? kTls : kPlain).size());
  const std::size_t slash = rest.find('/');
  EtcdName out{.text = text};
  out.name = slash == std::string::npos ? "" : rest.substr(slash + 1);
  const bool fits = !out.name.empty() && out.name.size() <= kMaxEtcdNameBytes &&
                    std::all_of(out.name.begin(), out.name.end(), is_name_byte);
  if (!fits) {
    return wrong(fmt::format("the name behind the members is '{}'; wanted 1 to {} letters, digits and -_./",
                             out.name.substr(0, 64), kMaxEtcdNameBytes));
  }
  const std::string members = rest.substr(0, slash);
  for (std::size_t begin = 0; begin <= members.size();) {
    const std::size_t comma = std::min(members.find(',', begin), members.size());
    const std::string member = members.substr(begin, comma - begin);
    if (const Status status = check_member(member); !status.ok()) return wrong(status.message());
    out.members.push_back((tls ? "https://" : "http://") + member);
    begin = comma + 1;
  }
  if (out.members.size() > kMaxEtcdMembers) {
    return wrong(fmt::format("{} members; wanted at most {}", out.members.size(), kMaxEtcdMembers));
  }
  return out;
}

Status set_etcd_user(const std::string& text, EtcdName& name) {
  const std::size_t colon = text.find(':');
  if (text.size() > kMaxEtcdUserBytes || colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    return invalid_argument("{} bytes of no such form; wanted USER:PASSWORD in one line, of at most {} bytes",
                            text.size(), kMaxEtcdUserBytes);
  }
  if (std::any_of(text.begin(), text.end(), [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; })) {
    return invalid_argument("a control character in it; wanted USER:PASSWORD in one line");
  }
  name.user = text.substr(0, colon);
  name.password = text.substr(colon + 1);
  return ok_status();
}

}  // namespace millrace
