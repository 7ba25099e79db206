// Static files of the program itself, such as the web page: each is a GET route that needs no key.
//
// A response has an ETag, and If-None-Match with it is a 304 (RFC 9110 13.1.2). The gzip form goes to clients whose
// Accept-Encoding takes it, with an ETag of its own, because a strong one names the bytes that are sent. Cache-Control
// is no-cache: browsers ask each time, so that a new build is seen at once, and mostly get a 304.
//
// The headers keep a page from loading or sending anything outside of this server (Content-Security-Policy), and other
// sites from framing it. So a file must hold no secret and no inline script or style.
//
// Thread safety: add_static_files() before the server starts. The files are constant and outlive the server.
#pragma once

#include <span>
#include <string_view>

#include "http/server.h"

namespace millrace::http {

struct StaticFile {
  std::string_view path;          // of the route: "/", "/web/app.js"
  std::string_view content_type;  // "text/html; charset=utf-8"
  std::string_view tag;           // a digest of the content, without quotes
  std::string_view content;
  std::string_view gzip;  // the same, compressed
};

void add_static_files(Server& server, std::span<const StaticFile> files);

// The response to one request for the file: 200 or 304.
Response static_response(const StaticFile& file, const Headers& request);

// True when an Accept-Encoding takes gzip: its weight, or that of "*", is above 0 (RFC 9110 12.5.3).
bool accepts_gzip(const Headers& request);

}  // namespace millrace::http
