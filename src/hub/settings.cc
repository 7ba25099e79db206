#include "hub/settings.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>

#include "base/trimmed.h"
#include "formats/mapped_file.h"
#include "http/curl_handle.h"

namespace millrace::hub {
namespace {

std::string value_of(const ReadVariable& get, const char* name) {
  const char* value = get(name);
  return value == nullptr ? "" : value;
}

bool is_true(const ReadVariable& get, const char* name) {
  std::string value = value_of(get, name);
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string expand_home(const std::string& path, const ReadVariable& get) {
  if (path != "~" && !path.starts_with("~/")) return path;
  return value_of(get, "HOME") + path.substr(1);
}

Result<std::string> hf_home(const ReadVariable& get) {
  if (const std::string home = value_of(get, "HF_HOME"); !home.empty()) return expand_home(home, get);
  if (const std::string cache = value_of(get, "XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface";
  if (const std::string home = value_of(get, "HOME"); !home.empty()) return home + "/.cache/huggingface";
  return invalid_argument("neither HF_HOME nor HOME is set; wanted HF_HOME, the folder where models are kept");
}

Result<std::string> check_endpoint(std::string text, const char* name) {
  while (text.ends_with('/')) text.pop_back();
  if (text.empty()) return text;
  const http::CurlUrl url(curl_url());
  const bool known = text.starts_with("http://") || text.starts_with("https://");
  if (url != nullptr && known && text.find_first_of("?#@ \r\n") == std::string::npos &&
      curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) == CURLUE_OK) {
    return text;
  }
  return invalid_argument("{} is '{}'; wanted an address such as https://hub.example", name, text.substr(0, 256));
}

Result<std::string> check_token(std::string token, const std::string& source) {
  token = std::string(trimmed(token));
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (printable && token.size() <= kMaxTokenBytes) return token;
  return invalid_argument("{} has a token of {} bytes; wanted at most {} printable ASCII characters without spaces",
                          source, token.size(), kMaxTokenBytes);
}

Result<std::string> find_token(const ReadVariable& get, const std::string& home) {
  if (is_true(get, "HF_HUB_DISABLE_IMPLICIT_TOKEN")) return std::string();
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const std::string token = value_of(get, name); !token.empty()) return check_token(token, name);
  }
  std::string path = expand_home(value_of(get, "HF_TOKEN_PATH"), get);
  if (path.empty()) path = home + "/token";
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return std::string();
  ASSIGN_OR_RETURN(std::string token, read_small_file(path, kMaxTokenBytes));
  return check_token(std::move(token), path);
}

}  // namespace

Status no_endpoint() {
  return invalid_argument(
      "HF_ENDPOINT is not set, and this build has no default; wanted the address of a hub, the one that the Hugging "
      "Face tools use or another that speaks their protocol: HF_ENDPOINT=https://hub.example");
}

Result<HubSettings> read_settings(const ReadVariable& get) {
  HubSettings out;
  ASSIGN_OR_RETURN(out.endpoint, check_endpoint(value_of(get, "HF_ENDPOINT"), "HF_ENDPOINT"));
  if (out.endpoint.empty()) {
    ASSIGN_OR_RETURN(out.endpoint, check_endpoint(MILLRACE_HUB_ENDPOINT, "MILLRACE_HUB_ENDPOINT of the build"));
  }
  ASSIGN_OR_RETURN(const std::string home, hf_home(get));
  ASSIGN_OR_RETURN(out.token, find_token(get, home));
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (out.cache.empty()) out.cache = expand_home(value_of(get, name), get);
  }
  if (out.cache.empty()) out.cache = home + "/hub";
  out.offline = is_true(get, "HF_HUB_OFFLINE") || is_true(get, "TRANSFORMERS_OFFLINE");
  return out;
}

}  // namespace millrace::hub
