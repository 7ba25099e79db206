#include "hub/connection.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "base/trimmed.h"
#include "formats/safetensors.h"

namespace millrace::hub {
namespace {

bool has_body(long status) { return status == 200 || status == 206; }
bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Scheme, host and port in lower case; "": no URL of http or https.
std::string origin_of(const std::string& text) {
  const http::CurlUrl url(curl_url());
  if (url == nullptr || curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) return "";
  std::string out;
  for (const CURLUPart part : {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT}) {
    char* value = nullptr;
    if (curl_url_get(url.get(), part, &value, CURLU_DEFAULT_PORT) != CURLUE_OK) return "";
    out += (out.empty() ? "" : "|") + std::string(value);
    curl_free(value);
  }
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out.starts_with("http|") || out.starts_with("https|") ? out : "";
}

bool would_fail_again(CURLcode code) {
  constexpr std::array kPermanent = {CURLE_PEER_FAILED_VERIFICATION, CURLE_SSL_CACERT_BADFILE,
                                     CURLE_UNSUPPORTED_PROTOCOL, CURLE_URL_MALFORMAT, CURLE_COULDNT_RESOLVE_PROXY};
  return std::find(kPermanent.begin(), kPermanent.end(), code) != kPermanent.end();
}

}  // namespace

// What the callbacks of one request work on; it lives through its redirects.
struct Connection::Hop {
  const OnHead& on_head;
  const OnBody& on_body;
  const std::function<bool()>& cancelled;
  CURL* curl = nullptr;
  HubAnswer answer;
  std::size_t head_bytes = 0;
  bool begun = false;            // on_head was called
  Status stopped = ok_status();  // why this end broke it off

  static std::size_t take_head(char* data, std::size_t one, std::size_t size, void* context);
  static std::size_t take_body(char* data, std::size_t one, std::size_t size, void* context);
  static int take_progress(void* context, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Hop*>(context)->cancelled() ? 1 : 0;
  }
  Status begin();
};

std::size_t Connection::Hop::take_head(char* data, std::size_t /*one*/, std::size_t size, void* context) {
  Hop& hop = *static_cast<Hop*>(context);
  hop.head_bytes += size;
  if (hop.head_bytes > kMaxHeadBytes) {
    hop.stopped = invalid_argument("the hub sends over {} bytes of header fields", kMaxHeadBytes);
    return 0;
  }
  const std::string_view line(data, size);
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return size;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string value(trimmed(line.substr(colon + 1)));
  if (name == "content-range") hop.answer.content_range = value;
  hop.answer.fields.emplace(std::move(name), std::move(value));
  return size;
}

Status Connection::Hop::begin() {
  begun = true;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer.status);
  curl_off_t length = -1;
  curl_easy_getinfo(curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  answer.content_length = length < 0 ? std::nullopt : std::optional<int64_t>(length);
  return has_body(answer.status) ? on_head(answer) : ok_status();
}

std::size_t Connection::Hop::take_body(char* data, std::size_t /*one*/, std::size_t size, void* context) {
  Hop& hop = *static_cast<Hop*>(context);
  if (!hop.begun) hop.stopped = hop.begin();
  if (hop.stopped.ok() && has_body(hop.answer.status)) {
    hop.stopped = hop.on_body(std::as_bytes(std::span(data, size)));
  }
  return hop.stopped.ok() ? size : 0;
}

std::string HubAnswer::field(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
}

bool is_passing(const HubAnswer& answer) {
  return answer.status == 408 || answer.status == 429 || answer.status >= 500;
}

Status status_of(const HubAnswer& answer, const std::string& what) {
  std::string reason = answer.field("x-error-message");
  reason = reason.empty() ? "" : ": " + quoted_name(reason);
  const auto fault = [&](StatusCode code, std::string_view advice) {
    return error(code, "{}: the hub answered {}{}{}", what, answer.status, reason, advice);
  };
  const bool gated = answer.field("x-error-code") == "GatedRepo";
  switch (answer.status) {
    case 401:
      return fault(StatusCode::kUnauthenticated,
                   gated ? "; access is restricted: wanted a token of an account that was granted access, in HF_TOKEN"
                         : "; there is no such model, or it takes a token: wanted one in HF_TOKEN");
    case 403:
      return fault(StatusCode::kPermissionDenied,
                   gated ? "; access is restricted: ask for access on the model's page, and set HF_TOKEN"
                         : "; wanted a token in HF_TOKEN that may read it");
    case 404:
      return fault(StatusCode::kNotFound, answer.field("x-error-code") == "RevisionNotFound"
                                              ? "; there is no such revision"
                                              : "; there is no such model, revision or file");
    case 429:
      return fault(StatusCode::kResourceExhausted, "; too many requests");
    default:
      return fault(is_passing(answer) ? StatusCode::kUnavailable : StatusCode::kInvalidArgument, "; wanted 200");
  }
}

Connection::Connection(const HubSettings& settings, std::function<bool()> cancelled, http::CurlHandle curl)
    : endpoint_(settings.endpoint), token_(settings.token), cancelled_(std::move(cancelled)), curl_(std::move(curl)) {}

Result<Connection> Connection::open(const HubSettings& settings, std::function<bool()> cancelled) {
  if (settings.endpoint.empty()) return no_endpoint();
  RETURN_IF_ERROR(http::start_curl());
  http::CurlHandle curl(curl_easy_init());
  if (curl == nullptr) return internal_error("libcurl gives no handle");
  return Connection(settings, std::move(cancelled), std::move(curl));
}

std::string Connection::escape(const std::string& text) const {
  char* escaped = curl_easy_escape(curl_.get(), text.c_str(), static_cast<int>(text.size()));
  CHECK(escaped != nullptr);
  std::string out = escaped;
  curl_free(escaped);
  return out;
}

// One request, without redirects.
Result<HubAnswer> Connection::perform_hop(const HubRequest& request, const std::string& url, Hop& hop) {
  CURL* curl = curl_.get();
  curl_easy_reset(curl);  // connections stay
  http::CurlList fields(curl_slist_append(nullptr, "Accept-Encoding: identity"));
  if (!token_.empty() && origin_of(url) == origin_of(endpoint_)) {
    fields.reset(curl_slist_append(fields.release(), ("Authorization: Bearer " + token_).c_str()));
  }
  const std::string range =
      request.last ? fmt::format("{}-{}", request.first, *request.last) : fmt::format("{}-", request.first);
  hop.curl = curl, hop.begun = false;
  hop.answer.content_range.clear();
  // Of a redirect, what it states about the file and the repository holds behind it; its ETag and length do not.
  std::erase_if(hop.answer.fields, [](const auto& field) {
    return !field.first.starts_with("x-linked-") && !field.first.starts_with("x-repo-");
  });
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, fields.get());
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "millrace");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  if (request.head) {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.first > 0 || request.last) {
    curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Hop::take_head);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &hop);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Hop::take_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &hop);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Hop::take_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &hop);
  const CURLcode code = curl_easy_perform(curl);
  if (!hop.stopped.ok()) return hop.stopped;
  if (code == CURLE_ABORTED_BY_CALLBACK) return Status(StatusCode::kCancelled, "interrupted");
  if (code != CURLE_OK) {
    return error(would_fail_again(code) ? StatusCode::kInvalidArgument : StatusCode::kUnavailable, "{}: {}",
                 origin_of(url) == origin_of(endpoint_) ? endpoint_ : "the server that the hub redirects to",
                 curl_easy_strerror(code));
  }
  if (!hop.begun) RETURN_IF_ERROR(hop.begin());  // an empty body
  curl_off_t wait = 0;
  curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &wait);
  hop.answer.retry_after_s = wait;
  return hop.answer;
}

Result<HubAnswer> Connection::perform(const HubRequest& request, const OnHead& on_head, const OnBody& on_body) {
  Hop hop{.on_head = on_head, .on_body = on_body, .cancelled = cancelled_};
  std::string url = request.url;
  for (int redirects = 0;; ++redirects) {
    ASSIGN_OR_RETURN(HubAnswer answer, perform_hop(request, url, hop));
    if (!is_redirect(answer.status)) return answer;
    // A HEAD asks for the fields of a file, which the hub itself has; behind it is where the bytes are.
    char* next = nullptr;
    curl_easy_getinfo(curl_.get(), CURLINFO_REDIRECT_URL, &next);
    const std::string target = next == nullptr ? "" : next;
    const std::string origin = origin_of(target);
    if (request.head && origin != origin_of(endpoint_)) return answer;
    if (redirects == kMaxRedirects) {
      return invalid_argument("the hub redirects more than {} times; wanted at most that", kMaxRedirects);
    }
    const bool weaker = origin_of(url).starts_with("https|") && !origin.starts_with("https|");
    if (origin.empty() || weaker) {
      return invalid_argument("the hub redirects to {}; wanted {}", quoted_name(target),
                              weaker ? "https, as it began" : "an address of http or https");
    }
    url = target;
  }
}

}  // namespace millrace::hub
