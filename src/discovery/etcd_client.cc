#include "discovery/etcd_client.h"

#include <openssl/evp.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/json.h"

namespace millrace {
namespace {

std::string to_base64(std::string_view bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  out.resize(static_cast<std::size_t>(size));
  return out;
}

std::optional<std::string> from_base64(const std::string& text) {
  std::string out(text.size() + 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  std::size_t padding = 0;  // EVP_DecodeBlock counts it as bytes
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  out.resize(static_cast<std::size_t>(size) - padding);
  return out;
}

// The gateway writes 64-bit integers as strings, and leaves out what is 0 (protobuf's JSON mapping).
int64_t integer_of(const Json& object, const char* key) {
  const Json* found = json_find(object, key);
  if (found == nullptr || !found->is_string()) return 0;
  const auto& text = found->get_ref<const std::string&>();
  int64_t out = 0;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

Status strange(const std::string& answer) {
  return internal_error("etcd answered '{}'; wanted an answer of its version 3 gateway", answer.substr(0, 200));
}

Result<Json> parse(const std::string& answer) {
  Result<Json> json = parse_json(answer);
  if (!json.ok() || !json->is_object()) return strange(answer);
  return json;
}

// etcd has few statuses for its errors: its words decide.
Status refusal(const std::string& url, long status, const std::string& body) {
  const auto has = [&body](std::string_view words) { return body.find(words) != std::string::npos; };
  StatusCode code = status >= 500 ? StatusCode::kUnavailable : StatusCode::kInternal;
  if (status == 401 || has("auth store is old")) code = StatusCode::kUnauthenticated;
  if (status == 403) code = StatusCode::kPermissionDenied;
  const char* wanted = "wanted 200";
  if (has("user name is empty")) {
    code = StatusCode::kUnauthenticated;
    wanted = "wanted --discovery-user-file with a user of etcd";
  }
  return error(code, "{} answered {}: {}; {}", url, status, body.substr(0, 200), wanted);
}

struct Reading {
  std::string body;
  bool too_long = false, enough = false;
  const std::function<bool(std::string_view)>* until = nullptr;
  const std::function<bool()>* cancelled = nullptr;
};

std::size_t on_body(char* data, std::size_t, std::size_t size, void* user) {
  auto& reading = *static_cast<Reading*>(user);
  reading.too_long = reading.body.size() + size > kMaxEtcdAnswerBytes;
  if (reading.too_long) return 0;
  reading.body.append(data, size);
  reading.enough = *reading.until && (*reading.until)(reading.body);
  return reading.enough ? 0 : size;  // 0 ends the transfer
}

int on_progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto& reading = *static_cast<Reading*>(user);
  return *reading.cancelled && (*reading.cancelled)() ? 1 : 0;
}

}  // namespace

Result<EtcdClient> EtcdClient::open(EtcdName name, std::function<bool()> cancelled) {
  RETURN_IF_ERROR(http::start_curl());
  http::CurlHandle curl(curl_easy_init());
  if (curl == nullptr) return internal_error("libcurl gives no handle");
  return EtcdClient(std::move(name), std::move(cancelled), std::move(curl));
}

EtcdClient::EtcdClient(EtcdName name, std::function<bool()> cancelled, http::CurlHandle curl)
    : name_(std::move(name)), cancelled_(std::move(cancelled)), curl_(std::move(curl)) {}

Result<std::string> EtcdClient::post_to(const std::string& url, const std::string& body, long timeout_ms,
                                        const std::function<bool(std::string_view)>& until) {
  Reading reading{.until = &until, .cancelled = &cancelled_};
  CURL* const curl = curl_.get();
  curl_easy_reset(curl);  // keeps its connections
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_PROXY, "");  // etcd is on the same network as the stages
  curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
  curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "millrace");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, kEtcdConnectMs);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, timeout_ms);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &reading);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &reading);
  const http::CurlList headers(token_.empty() ? nullptr
                                              : curl_slist_append(nullptr, ("Authorization: " + token_).c_str()));
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  const CURLcode code = curl_easy_perform(curl);
  if (code == CURLE_ABORTED_BY_CALLBACK) return Status(StatusCode::kCancelled, "ended");
  if (reading.too_long) return internal_error("{} answered over {} bytes", url, kMaxEtcdAnswerBytes);
  // A stream is left when it has what is wanted; one that brought nothing in its time is no failure.
  if (until && (reading.enough || code == CURLE_OPERATION_TIMEDOUT)) return std::move(reading.body);
  if (code != CURLE_OK) return error(StatusCode::kUnavailable, "{}: {}", url, curl_easy_strerror(code));
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  if (status == 200 && until) return error(StatusCode::kUnavailable, "{} ended the stream", url);
  if (status == 200) return std::move(reading.body);
  return refusal(url, status, reading.body);
}

Result<std::string> EtcdClient::post(std::string_view path, const Json& body, long timeout_ms,
                                     const std::function<bool(std::string_view)>& until) {
  if (name_.user.empty()) return post_to_any(path, body, timeout_ms, until);
  const bool fresh = token_.empty();
  if (fresh) RETURN_IF_ERROR(authenticate());
  Result<std::string> answer = post_to_any(path, body, timeout_ms, until);
  if (answer.status().code() != StatusCode::kUnauthenticated || fresh) return answer;
  // Tokens have a time, go when etcd starts again, and count no more when its roles have changed.
  RETURN_IF_ERROR(authenticate());
  return post_to_any(path, body, timeout_ms, until);
}

Status EtcdClient::authenticate() {
  token_.clear();
  auto text =
      post_to_any("/v3/auth/authenticate", {{"name", name_.user}, {"password", name_.password}}, kEtcdCallMs, {});
  if (text.status().code() == StatusCode::kInternal) {
    return error(StatusCode::kUnauthenticated, "etcd gives the user '{}' no token: {}", name_.user,
                 text.status().message());
  }
  RETURN_IF_ERROR(text.status());
  ASSIGN_OR_RETURN(const Json answer, parse(*text));
  RETURN_IF_ERROR(json_read(answer, "token", token_));
  return token_.empty() ? strange("an answer without a token") : ok_status();
}

Result<std::string> EtcdClient::post_to_any(std::string_view path, const Json& body, long timeout_ms,
                                            const std::function<bool(std::string_view)>& until) {
  Status last;
  for (std::size_t i = 0; i < name_.members.size(); ++i) {
    const std::size_t member = (member_ + i) % name_.members.size();
    Result<std::string> answer = post_to(name_.members[member] + std::string(path), body.dump(), timeout_ms, until);
    if (answer.ok() || answer.status().code() != StatusCode::kUnavailable) {
      member_ = member;
      return answer;
    }
    last = answer.status();
  }
  return last;
}

Result<int64_t> EtcdClient::grant_lease(int ttl_s) {
  ASSIGN_OR_RETURN(const std::string text, post("/v3/lease/grant", {{"TTL", ttl_s}}, kEtcdCallMs));
  ASSIGN_OR_RETURN(const Json answer, parse(text));
  const int64_t lease = integer_of(answer, "ID");
  if (lease == 0) return strange(text);
  return lease;
}

Result<bool> EtcdClient::keep_alive(int64_t lease) {
  ASSIGN_OR_RETURN(const std::string text, post("/v3/lease/keepalive", {{"ID", std::to_string(lease)}}, kEtcdCallMs));
  ASSIGN_OR_RETURN(const Json answer, parse(text));
  const Json* result = json_find(answer, "result");
  if (result == nullptr || !result->is_object()) return strange(text);
  return integer_of(*result, "TTL") > 0;
}

Status EtcdClient::revoke(int64_t lease) {
  return post("/v3/lease/revoke", {{"ID", std::to_string(lease)}}, kEtcdCallMs).status();
}

// `range`: the part of the answer that has the key's value.
Result<EtcdEntry> EtcdClient::read_entry(const Json& answer, const Json& range) const {
  EtcdEntry out;
  const Json* header = json_find(answer, "header");
  if (header == nullptr || !header->is_object()) return strange(answer.dump());
  out.revision = integer_of(*header, "revision");
  const Json* values = json_find(range, "kvs");
  if (values == nullptr || !values->is_array() || values->empty()) return out;
  std::string value;
  RETURN_IF_ERROR(json_read(values->front(), "value", value));
  out.value = from_base64(value);
  out.lease = integer_of(values->front(), "lease");
  if (!out.value) return strange(answer.dump());
  return out;
}

Result<EtcdEntry> EtcdClient::get(const std::string& key) {
  ASSIGN_OR_RETURN(const std::string text, post("/v3/kv/range", {{"key", to_base64(key)}}, kEtcdCallMs));
  ASSIGN_OR_RETURN(const Json answer, parse(text));
  return read_entry(answer, answer);
}

Result<EtcdEntry> EtcdClient::claim(const std::string& key, const std::string& value, int64_t lease) {
  const std::string name = to_base64(key);
  const Json put = {{"key", name}, {"value", to_base64(value)}, {"lease", std::to_string(lease)}};
  const Json absent = {{"key", name}, {"target", "CREATE"}, {"create_revision", "0"}};
  const Json body = {{"compare", Json::array({absent})},
                     {"success", Json::array({{{"request_put", put}}})},
                     {"failure", Json::array({{{"request_range", {{"key", name}}}}})}};
  ASSIGN_OR_RETURN(const std::string text, post("/v3/kv/txn", body, kEtcdCallMs));
  ASSIGN_OR_RETURN(const Json answer, parse(text));
  bool won = false;
  RETURN_IF_ERROR(json_read(answer, "succeeded", won));
  if (won) {
    ASSIGN_OR_RETURN(EtcdEntry entry, read_entry(answer, Json::object()));
    entry.value = value;
    entry.lease = lease;
    return entry;
  }
  const Json* responses = json_find(answer, "responses");
  if (responses == nullptr || !responses->is_array() || responses->empty()) return strange(text);
  const Json* range = json_find(responses->front(), "response_range");
  if (range == nullptr || !range->is_object()) return strange(text);
  return read_entry(answer, *range);
}

Status EtcdClient::wait_for_change(const std::string& key, int64_t revision, int timeout_ms) {
  const Json create = {{"key", to_base64(key)}, {"start_revision", std::to_string(revision + 1)}};
  // One JSON object a line: that the stream is made, then what happened to the key, or why it cannot be followed.
  const auto has_change = [](std::string_view body) {
    return body.find("\"events\"") != std::string_view::npos ||
           body.find("\"canceled\":true") != std::string_view::npos;
  };
  return post("/v3/watch", {{"create_request", create}}, timeout_ms, has_change).status();
}

}  // namespace millrace
