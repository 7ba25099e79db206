#include "http/span_exporter.h"

#include <utility>

#include "base/log.h"
#include "base/trace.h"
#include "http/curl_handle.h"

namespace millrace::http {
namespace {

using Clock = std::chrono::steady_clock;

constexpr long kConnectTimeoutMs = 2000, kExportTimeoutMs = 5000;
constexpr std::chrono::minutes kBetweenWarnings{1};

std::size_t drop_body(char*, std::size_t, std::size_t size, void*) { return size; }

// What OTLP/HTTP calls retryable.
bool may_succeed_later(long status) { return status == 429 || (status >= 502 && status <= 504); }

Status check_url(const std::string& text) {
  const CurlUrl url(curl_url());
  if (url == nullptr) return internal_error("libcurl gives no handle");
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) == CURLUE_OK) {
    char* scheme = nullptr;
    curl_url_get(url.get(), CURLUPART_SCHEME, &scheme, 0);
    const std::string name = scheme == nullptr ? "" : scheme;
    curl_free(scheme);
    if (name == "http" || name == "https") return ok_status();
  }
  return invalid_argument("'{}' is no URL of a collector; wanted http://HOST:PORT or https://HOST:PORT", text);
}

}  // namespace

Result<std::unique_ptr<SpanExporter>> SpanExporter::make(SpanExporterOptions options) {
  RETURN_IF_ERROR(start_curl());
  RETURN_IF_ERROR(check_url(options.url));
  return std::unique_ptr<SpanExporter>(new SpanExporter(std::move(options)));
}

SpanExporter::SpanExporter(SpanExporterOptions options) : options_(std::move(options)), thread_([this] { run(); }) {}

SpanExporter::~SpanExporter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_changed_.notify_all();
  queue_.close();  // what is queued still comes out
  thread_.join();
}

void SpanExporter::add(Span span) {
  if (!queue_.push(std::move(span)).ok()) ++dropped_;
}

void SpanExporter::run() {
  trace::name_thread("spans");
  std::vector<Span> batch;
  while (std::optional<Span> first = queue_.pop(-1)) {
    batch.clear();
    batch.push_back(*std::move(first));
    gather(batch);
    send(batch);
  }
}

void SpanExporter::gather(std::vector<Span>& batch) {
  const auto end = Clock::now() + options_.gather;
  while (batch.size() < kMaxSpansPerExport) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    std::optional<Span> next = queue_.pop(static_cast<int>(std::max<int64_t>(left, 0)));
    if (!next) return;
    batch.push_back(*std::move(next));
  }
}

void SpanExporter::send(const std::vector<Span>& batch) {
  const std::string body = otlp_json(options_.resource, options_.version, batch);
  Status status;
  for (int attempt = 1; attempt <= kExportAttempts; ++attempt) {
    status = post(body);
    if (status.ok()) {
      exported_ += batch.size();
      return;
    }
    if (status.code() != StatusCode::kUnavailable || !wait_before_retry(attempt)) break;
  }
  dropped_ += batch.size();
  const auto now = Clock::now();
  if (warned_ != Clock::time_point{} && now - warned_ < kBetweenWarnings) return;
  warned_ = now;
  LOG_WARNING("spans: {} did not take {} of them: {}", options_.url, batch.size(), status.message());
}

// False: there is no further attempt.
bool SpanExporter::wait_before_retry(int attempt) {
  if (attempt == kExportAttempts) return false;
  std::unique_lock lock(mutex_);
  return !stop_changed_.wait_for(lock, options_.retry * attempt, [this] { return stopping_; });
}

Status SpanExporter::post(const std::string& body) {
  const CurlHandle curl(curl_easy_init());
  if (curl == nullptr) return internal_error("libcurl gives no handle");
  CurlList headers(curl_slist_append(nullptr, "Content-Type: application/json"));
  for (const std::string& header : options_.headers)
    headers.reset(curl_slist_append(headers.release(), header.c_str()));
  curl_easy_setopt(curl.get(), CURLOPT_URL, options_.url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.data());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  curl_easy_setopt(curl.get(), CURLOPT_USERAGENT, "millrace");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_QUICK_EXIT, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, kExportTimeoutMs);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, drop_body);
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK) return Status(StatusCode::kUnavailable, curl_easy_strerror(code));
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status >= 200 && status < 300) return ok_status();
  return error(may_succeed_later(status) ? StatusCode::kUnavailable : StatusCode::kInvalidArgument,
               "it answered {}; wanted 200", status);
}

}  // namespace millrace::http
