#include "app/request_traces.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "app/commands.h"
#include "base/log.h"
#include "base/trimmed.h"
#include "http/target.h"

namespace millrace {
namespace {

constexpr std::string_view kTracesPath = "/v1/traces";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string endpoint_of(const std::string& option) {
  if (!option.empty()) return traces_url(option);
  if (variable("OTEL_SDK_DISABLED") == "true") return "";
  if (std::string url = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"); !url.empty()) return url;
  std::string base = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
  if (base.empty()) return "";
  while (base.ends_with('/')) base.pop_back();
  return base + std::string(kTracesPath);
}

// The sender: the name of the service, the host and the process.
Result<SpanAttributes> resource_of() {
  ASSIGN_OR_RETURN(SpanAttributes resource,
                   read_pairs("OTEL_RESOURCE_ATTRIBUTES", variable("OTEL_RESOURCE_ATTRIBUTES")));
  const auto add = [&resource](const char* name, SpanValue value) {
    for (const auto& [known, unused] : resource) {
      if (known == name) return;
    }
    resource.emplace_back(name, std::move(value));
  };
  if (const std::string name = variable("OTEL_SERVICE_NAME"); !name.empty()) {
    std::erase_if(resource, [](const auto& attribute) { return attribute.first == "service.name"; });
    add("service.name", name);
  }
  add("service.name", "millrace");
  add("service.version", kVersion);
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) add("host.name", host.data());
  add("process.pid", int64_t{::getpid()});
  return resource;
}

}  // namespace

std::string traces_url(const std::string& base) {
  const std::size_t scheme = base.find("://");
  const std::size_t path = scheme == std::string::npos ? std::string::npos : base.find('/', scheme + 3);
  if (path == std::string::npos) return base + std::string(kTracesPath);
  return path + 1 == base.size() ? base.substr(0, path) + std::string(kTracesPath) : base;
}

Result<SpanAttributes> read_pairs(const std::string& variable, const std::string& text) {
  SpanAttributes out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view entry = trimmed(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (entry.empty()) continue;
    const std::size_t equals = entry.find('=');
    std::string value;
    if (equals == 0 || equals == entry.npos || !http::percent_decode(trimmed(entry.substr(equals + 1)), false, value)) {
      return invalid_argument("{} has the entry '{}'; wanted name=value, percent-encoded", variable, entry);
    }
    out.emplace_back(std::string(trimmed(entry.substr(0, equals))), std::move(value));
  }
  return out;
}

Result<std::shared_ptr<http::SpanExporter>> make_span_exporter(const std::string& endpoint) {
  const std::string url = endpoint_of(endpoint);
  if (url.empty()) return std::shared_ptr<http::SpanExporter>();
  http::SpanExporterOptions exporter{.url = url, .version = kVersion};
  ASSIGN_OR_RETURN(exporter.resource, resource_of());
  ASSIGN_OR_RETURN(const SpanAttributes headers,
                   read_pairs("OTEL_EXPORTER_OTLP_HEADERS", variable("OTEL_EXPORTER_OTLP_HEADERS")));
  for (const auto& [name, value] : headers) exporter.headers.push_back(name + ": " + std::get<std::string>(value));
  auto made = http::SpanExporter::make(std::move(exporter));
  RETURN_IF_ERROR(made.status().with_prefix("--otlp-traces-endpoint"));
  LOG_INFO("spans of requests go to {}", url);
  return std::shared_ptr<http::SpanExporter>(std::move(made).value());
}

Result<Traces> make_traces(const ServeOptions& options) {
  Traces out;
  ASSIGN_OR_RETURN(out.exporter, make_span_exporter(options.otlp_endpoint));
  if (out.exporter) out.requests = std::make_shared<api::RequestSpans>(out.exporter, options.otlp_sample);
  return out;
}

}  // namespace millrace
