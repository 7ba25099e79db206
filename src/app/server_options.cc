#include "app/server_options.h"

#include <fmt/format.h>

#include "api/error.h"
#include "app/commands.h"
#include "base/log.h"

namespace millrace {

http::ServerOptions server_options(const ServeOptions& o, std::size_t connections) {
  http::ServerOptions out;
  out.limits.connections = connections;
  out.host = o.host;
  out.port = static_cast<uint16_t>(o.port);
  out.api_key = o.api_key;
  out.admin_api_key = o.admin_api_key;
  out.admin_without_key = o.admin_without_key;
  out.unix_socket = o.uds;
  out.tcp = o.tcp;
  out.cors_origins = o.cors_origins;
  out.allowed_hosts = o.allowed_hosts;
  out.server_name = std::string("millrace/") + kVersion;
  out.limits.body_bytes = static_cast<std::size_t>(o.max_body_mib) << 20;
  out.limits.event_stream_ping = std::chrono::seconds(o.sse_ping_s);
  out.render_error = api::render_http_error;
  return out;
}

std::string local_url(const ServeOptions& options, const http::Server& server) {
  if (!options.tcp) return server.url();
  if (options.host == "0.0.0.0") return fmt::format("http://127.0.0.1:{}", server.port());
  if (options.host == "::" || options.host == "[::]") return fmt::format("http://[::1]:{}", server.port());
  return server.url();
}

void warn_of_open_server(const ServeOptions& options, const http::Server& server) {
  if (server.is_local() || !options.api_key.empty()) return;
  LOG_WARNING(
      "--host {} without --api-key: everyone who reaches this host may use the model; wanted a key, or --host "
      "127.0.0.1",
      options.host);
}

}  // namespace millrace
