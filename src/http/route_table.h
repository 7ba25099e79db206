// The table of routes: method and pattern to handler and access.
//
// Matching works on decoded segments, so an escaped slash never changes which route a path selects. A literal segment
// wins over a {parameter}; among equals the first added wins. A slash at the end of a path that has no route of its own
// counts for nothing.
//
// Owner: the server's Context. Thread safety: built before the server starts, then immutable.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/server.h"

namespace millrace::http {

class RouteTable {
 public:
  // CHECK-fails on a malformed pattern or a duplicate of (method, pattern).
  void add(Route route);
  // In the sequence of add(). Valid until the next one.
  std::vector<const Route*> routes() const;

  struct Match {
    const Route* route = nullptr;   // nullptr: no route has this path and method
    bool path_known = false;        // some method is served on this path
    const Route* family = nullptr;  // then the first route of the path, which renders its errors
    std::string allow;              // "GET, HEAD, POST, OPTIONS" for Allow, when path_known
    std::vector<std::pair<std::string, std::string>> params;
  };
  Match match(std::string_view method, const std::vector<std::string>& segments) const;

 private:
  struct Segment {
    enum class Kind : uint8_t { kLiteral, kParam, kRest } kind;
    std::string text;  // the literal or the parameter's name
  };
  struct Entry {
    Route route;
    std::vector<Segment> segments;
  };
  static bool matches(const Entry& entry, const std::vector<std::string>& segments);
  static bool more_specific(const Entry& a, const Entry& b);

  std::vector<Entry> entries_;
};

}  // namespace millrace::http
