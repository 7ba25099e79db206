#include "http/route_table.h"

#include "http/target.h"

namespace millrace::http {
namespace {

void add_method(std::string& allow, std::string_view method) {
  std::string padded = ", " + allow + ",";
  if (padded.find(", " + std::string(method) + ",") != std::string::npos) return;
  if (!allow.empty()) allow += ", ";
  allow += method;
}

}  // namespace

void RouteTable::add(Route route) {
  CHECK(is_token(route.method));
  CHECK((route.handler != nullptr) != (route.websocket != nullptr));
  CHECK(!route.pattern.empty() && route.pattern[0] == '/');
  for (const Entry& other : entries_) CHECK(other.route.method != route.method || other.route.pattern != route.pattern);
  Entry entry;
  for (size_t begin = 1;;) {
    size_t end = route.pattern.find('/', begin);
    std::string text = route.pattern.substr(begin, end == std::string::npos ? end : end - begin);
    Segment::Kind kind = Segment::Kind::kLiteral;
    if (text.starts_with('{')) {
      CHECK(text.size() > 2 && text.back() == '}');
      text = text.substr(1, text.size() - 2);
      kind = Segment::Kind::kParam;
      if (text.ends_with("...")) {
        CHECK(end == std::string::npos && text.size() > 3);
        text.resize(text.size() - 3);
        kind = Segment::Kind::kRest;
      }
    }
    entry.segments.push_back({kind, std::move(text)});
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  entry.route = std::move(route);
  entries_.push_back(std::move(entry));
}

std::vector<const Route*> RouteTable::routes() const {
  std::vector<const Route*> out;
  out.reserve(entries_.size());
  for (const Entry& entry : entries_) out.push_back(&entry.route);
  return out;
}

bool RouteTable::matches(const Entry& entry, const std::vector<std::string>& segments) {
  size_t count = entry.segments.size();
  bool rest = entry.segments.back().kind == Segment::Kind::kRest;
  if (rest ? segments.size() < count : segments.size() != count) return false;
  for (size_t i = 0; i < count; ++i) {
    const Segment& want = entry.segments[i];
    if (want.kind == Segment::Kind::kLiteral ? segments[i] != want.text : segments[i].empty()) return false;
  }
  return true;
}

bool RouteTable::more_specific(const Entry& a, const Entry& b) {
  for (size_t i = 0; i < a.segments.size() && i < b.segments.size(); ++i) {
    if (a.segments[i].kind != b.segments[i].kind) return a.segments[i].kind < b.segments[i].kind;
  }
  return false;
}

RouteTable::Match RouteTable::match(std::string_view method, const std::vector<std::string>& segments) const {
  Match result;
  const Entry* best = nullptr;
  bool best_is_exact = false;
  for (const Entry& entry : entries_) {
    if (segments.empty() || !matches(entry, segments)) continue;
    result.path_known = true;
    if (result.family == nullptr) result.family = &entry.route;
    add_method(result.allow, entry.route.method);
    if (entry.route.method == "GET") add_method(result.allow, "HEAD");
    bool exact = entry.route.method == method;
    if (!exact && !(method == "HEAD" && entry.route.method == "GET")) continue;
    if (best == nullptr || more_specific(entry, *best) || (exact && !best_is_exact && !more_specific(*best, entry))) {
      best = &entry;
      best_is_exact = exact;
    }
  }
  if (!result.path_known && segments.size() > 1 && segments.back().empty() && !segments[segments.size() - 2].empty()) {
    return match(method, {segments.begin(), segments.end() - 1});  // "/v1/models/" is "/v1/models"
  }
  if (result.path_known) add_method(result.allow, "OPTIONS");
  if (best == nullptr) return result;
  result.route = result.family = &best->route;
  for (size_t i = 0; i < best->segments.size(); ++i) {
    const Segment& part = best->segments[i];
    if (part.kind == Segment::Kind::kLiteral) continue;
    std::string value = segments[i];
    for (size_t j = i + 1; part.kind == Segment::Kind::kRest && j < segments.size(); ++j) value += "/" + segments[j];
    result.params.emplace_back(part.text, std::move(value));
  }
  return result;
}

}  // namespace millrace::http
