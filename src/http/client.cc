#include "http/client.h"

#include <utility>
// asio's awaitable.hpp of Boost 1.74 forgets <utility>.
#include <sys/socket.h>
#include <boost/asio/connect.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace millrace::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;

constexpr std::size_t kReadBytes = 16384;
constexpr std::size_t kMaxUnixPathBytes = 107;  // of sockaddr_un
constexpr uint64_t kMaxResponseBytes = 256u << 20;

Status failure(const Url& url, std::string_view what, const boost::system::error_code& error) {
  const bool refused = error == boost::asio::error::connection_refused;  // nothing listens there, most likely
  return millrace::error(StatusCode::kUnavailable, "{} {}: {}{}", what, url.text(), error.message(),
                         refused ? "; wanted a server that runs there, or another address (--url)" : "");
}

// Lets a socket be known to others for as long as it is open.
class Shown {
 public:
  Shown(std::mutex& mutex, int& slot, int socket) : mutex_(mutex), slot_(slot) { show(socket); }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;
  ~Shown() { show(-1); }

 private:
  void show(int socket) {
    std::lock_guard lock(mutex_);
    slot_ = socket;
  }
  std::mutex& mutex_;
  int& slot_;
};

}  // namespace

void Client::interrupt() {
  std::lock_guard lock(mutex_);
  if (socket_ >= 0) (void)::shutdown(socket_, SHUT_RDWR);
}

std::string Url::text() const { return unix_socket.empty() ? fmt::format("{}:{}", host, port) : "unix:" + unix_socket; }

Result<Url> parse_url(const std::string& text) {
  std::string_view rest = text;
  if (rest.starts_with("unix:")) {
    Url url;
    url.unix_socket = rest.substr(5);
    if (url.unix_socket.empty() || url.unix_socket.size() > kMaxUnixPathBytes) {
      return invalid_argument("the path of the socket has {} bytes; wanted unix:PATH, 1 to {} bytes",
                              url.unix_socket.size(), kMaxUnixPathBytes);
    }
    return url;
  }
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.find("://") != std::string_view::npos) {
    return invalid_argument("the URL is '{}'; wanted http://HOST:PORT or unix:PATH", text);
  }
  rest = rest.substr(0, rest.find('/'));
  Url url;
  // "[::1]:8080": the brackets keep an IPv6 address apart from the port.
  const bool bracketed = rest.starts_with('[');
  const std::size_t bracket = bracketed ? rest.find(']') : 0;
  const std::size_t colon = bracket == std::string_view::npos ? bracket : rest.find(':', bracket);
  std::string_view host = rest.substr(0, colon);
  if (bracketed && (!host.ends_with(']') || host.size() < 3)) {
    return invalid_argument("the host is '{}'; wanted an IPv6 address in brackets, [::1]", rest);
  }
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (colon != std::string_view::npos) {
    const std::string_view port = rest.substr(colon + 1);
    const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (code != std::errc() || end != port.data() + port.size() || url.port == 0) {
      return invalid_argument("the port is '{}'; wanted a number in [1, 65535]", port);
    }
  }
  if (!host.empty()) url.host = std::string(host);
  return url;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 || std::string_view("-._~/:").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

Result<ClientResponse> Client::get(const std::string& path, const std::function<bool(std::string_view)>& on_data) {
  return request("GET", path, "", on_data);
}

Result<ClientResponse> Client::post(const std::string& path, const std::string& json,
                                    const std::function<bool(std::string_view)>& on_data) {
  return request("POST", path, json, on_data);
}

Result<ClientResponse> Client::request(const std::string& method, const std::string& path, const std::string& json,
                                       const std::function<bool(std::string_view)>& on_data) {
  asio::io_context context;
  boost::system::error_code error;
  if (!url_.unix_socket.empty()) {
    asio::local::stream_protocol::socket socket(context);
    socket.connect(asio::local::stream_protocol::endpoint(url_.unix_socket), error);
    if (error) return failure(url_, "cannot connect to", error);
    return exchange(socket, method, path, json, on_data);
  }
  asio::ip::tcp::socket socket(context);
  const auto addresses = asio::ip::tcp::resolver(context).resolve(url_.host, std::to_string(url_.port), error);
  if (error) return failure(url_, "cannot resolve", error);
  asio::connect(socket, addresses, error);
  if (error) return failure(url_, "cannot connect to", error);
  return exchange(socket, method, path, json, on_data);
}

template <typename Socket>
Result<ClientResponse> Client::exchange(Socket& socket, const std::string& method, const std::string& path,
                                        const std::string& json, const std::function<bool(std::string_view)>& on_data) {
  boost::system::error_code error;
  const Shown shown(mutex_, socket_, socket.native_handle());

  bhttp::request<bhttp::string_body> message(bhttp::string_to_verb(method), path, 11);
  const std::string host = url_.host.find(':') == std::string::npos ? url_.host : "[" + url_.host + "]";
  message.set(bhttp::field::host, url_.unix_socket.empty() ? host + ":" + std::to_string(url_.port) : "localhost");
  message.set(bhttp::field::content_type, "application/json");
  message.set(bhttp::field::connection, "close");
  if (!api_key_.empty()) message.set(bhttp::field::authorization, "Bearer " + api_key_);
  message.body() = json;
  message.prepare_payload();
  bhttp::write(socket, message, error);
  if (error) return failure(url_, "cannot send to", error);

  beast::flat_buffer buffer;
  bhttp::response_parser<bhttp::buffer_body> parser;
  parser.body_limit(kMaxResponseBytes);
  bhttp::read_header(socket, buffer, parser, error);
  if (error) return failure(url_, "no answer from", error);
  ClientResponse response{.status = static_cast<int>(parser.get().result_int())};
  if (on_data && response.status == 200) parser.body_limit(boost::none);  // it is not kept, and may go on for days
  std::string chunk(kReadBytes, '\0');
  while (!parser.is_done()) {
    parser.get().body() = {chunk.data(), chunk.size(), true};
    bhttp::read_some(socket, buffer, parser, error);
    if (error == bhttp::error::need_buffer) error = {};
    const std::string_view got(chunk.data(), chunk.size() - parser.get().body().size);
    if (error && error != bhttp::error::end_of_stream) return failure(url_, "the answer broke off from", error);
    if (on_data && response.status == 200) {
      if (!got.empty() && !on_data(got)) break;
    } else {
      response.body += got;
    }
    if (error) break;
  }
  return response;
}

bool SseReader::push(std::string_view bytes, const std::function<bool(std::string_view)>& on_event) {
  kept_ += bytes;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = kept_.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
    std::string_view event(kept_.data() + begin, end - begin);
    if (event.starts_with("event: ")) event.remove_prefix(std::min(event.find('\n'), event.size() - 1) + 1);
    if (event.starts_with("data: ") && !on_event(event.substr(6))) return false;
  }
  kept_.erase(0, begin);
  return true;
}

}  // namespace millrace::http
