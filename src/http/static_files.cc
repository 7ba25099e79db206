#include "http/static_files.h"

#include "base/trimmed.h"

namespace millrace::http {
namespace {

// The part up to the separator, which is taken off the text. For "a, b": "a", then "b".
std::string_view take_part(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = trimmed(text.substr(0, end), kBlanks);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

// False for "q=0", "q=0.0", ...: what the client refuses.
bool has_weight(std::string_view parameters) {
  while (!parameters.empty()) {
    const std::string_view parameter = take_part(parameters, ';');
    if (!parameter.starts_with("q=") && !parameter.starts_with("Q=")) continue;
    return parameter.find_first_of("123456789", 2) != std::string_view::npos;
  }
  return true;
}

// Weak comparison: "W/" before a tag counts for nothing (RFC 9110 8.8.3.2).
bool matches(const Headers& request, std::string_view tag) {
  for (const Header& field : request) {
    if (!equals_ignore_case(field.name, "if-none-match")) continue;
    for (std::string_view rest = field.value; !rest.empty();) {
      std::string_view given = take_part(rest, ',');
      if (given == "*") return true;
      if (given.starts_with("W/")) given.remove_prefix(2);
      if (given == tag) return true;
    }
  }
  return false;
}

}  // namespace

bool accepts_gzip(const Headers& request) {
  bool any = false;
  for (const Header& field : request) {
    if (!equals_ignore_case(field.name, "accept-encoding")) continue;
    for (std::string_view rest = field.value; !rest.empty();) {
      std::string_view parameters = take_part(rest, ',');
      const std::string_view coding = take_part(parameters, ';');
      if (equals_ignore_case(coding, "gzip") || equals_ignore_case(coding, "x-gzip")) return has_weight(parameters);
      if (coding == "*") any = has_weight(parameters);
    }
  }
  return any;
}

Response static_response(const StaticFile& file, const Headers& request) {
  const bool gzip = accepts_gzip(request);
  std::string tag = "\"" + std::string(file.tag) + (gzip ? "-gz\"" : "\"");
  Response response{.headers = {{"Cache-Control", "no-cache"},
                                {"Vary", "Accept-Encoding"},
                                {"Content-Security-Policy",
                                 "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; "
                                 "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                                {"X-Content-Type-Options", "nosniff"},
                                {"X-Frame-Options", "DENY"},
                                {"Referrer-Policy", "no-referrer"},
                                {"Cross-Origin-Opener-Policy", "same-origin"},
                                {"Cross-Origin-Resource-Policy", "same-origin"}}};
  const bool same = matches(request, tag);
  response.headers.set("ETag", std::move(tag));
  if (same) {
    response.status = 304;
    response.content_type.clear();
    return response;
  }
  response.content_type = file.content_type;
  if (gzip) response.headers.set("Content-Encoding", "gzip");
  response.body = gzip ? file.gzip : file.content;
  return response;
}

void add_static_files(Server& server, std::span<const StaticFile> files) {
  for (const StaticFile& file : files) {
    server.add_route({.method = "GET",
                      .pattern = std::string(file.path),
                      .access = Access::kPublic,
                      .handler = [&file](RequestPtr request, ResponderPtr responder) {
                        responder->send(static_response(file, request->headers));
                      }});
  }
}

}  // namespace millrace::http
