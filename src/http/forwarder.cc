#include "http/forwarder.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "http/curl_handle.h"

namespace millrace::http {
namespace {

constexpr int kPausedPollMs = 10;  // how late a client that reads again is noticed
constexpr int kIdlePollMs = 1000;

// Of requests: what concerns the message and not the connection, and no key.
bool is_sent_on(std::string_view name) {
  for (std::string_view kept : {"content-type", "accept", "user-agent", "x-request-id", "traceparent", "tracestate"}) {
    if (equals_ignore_case(name, kept)) return true;
  }
  for (std::string_view local : {"x-api-key", "x-forwarded-for", "x-real-ip"}) {
    if (equals_ignore_case(name, local)) return false;
  }
  for (std::string_view prefix : {"x-", "anthropic-", "openai-"}) {
    if (equals_ignore_case(name.substr(0, prefix.size()), prefix)) return true;
  }
  return false;
}

// Of answers: the rest is made by this server.
bool is_brought_back(std::string_view name) {
  for (std::string_view local : {"content-length", "content-type", "transfer-encoding", "connection", "keep-alive",
                                 "date", "server", "x-request-id", "vary"}) {
    if (equals_ignore_case(name, local)) return false;
  }
  return !equals_ignore_case(name.substr(0, 15), "access-control-");
}

std::string_view trimmed_value(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == '\r' || text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

// One request on its way. The Forwarder's thread, but for cancelled.
class Forwarder::Transfer {
 public:
  RequestPtr request;
  ResponderPtr responder;  // null: of fetch()
  ForwardTarget target;
  std::function<void()> done;
  std::function<void(Result<ClientResponse>)> fetched;
  int timeout_ms = 0;  // 0: none
  std::atomic<bool> cancelled{false};

  CURL* curl() const { return curl_.get(); }
  bool paused() const { return paused_; }
  Status prepare();
  void resume_if_read();
  // `why`: empty where the answer is complete.
  void end(const std::string& why, const RenderFailure& render);

 private:
  static std::size_t on_header(char* data, std::size_t size, std::size_t count, void* self);
  static std::size_t on_body(char* data, std::size_t size, std::size_t count, void* self);
  void header_line(std::string_view line);
  std::size_t take(std::string_view bytes);
  CurlList fields() const;

  CurlHandle curl_;
  CurlList fields_;
  int status_ = 0;
  Headers headers_;
  std::string type_, body_;
  bool has_length_ = false, started_ = false, paused_ = false;
};

CurlList Forwarder::Transfer::fields() const {
  CurlList out;
  const auto add = [&out](const std::string& field) {
    if (curl_slist* const list = curl_slist_append(out.get(), field.c_str())) {
      (void)out.release();
      out.reset(list);
    }
  };
  add("Expect:");
  add("Host: localhost");
  if (!request) return out;
  add("X-Request-Id: " + request->request_id);
  for (const Header& field : request->headers) {
    if (is_sent_on(field.name) && !equals_ignore_case(field.name, "x-request-id")) {
      add(field.name + (field.value.empty() ? ";" : ": " + field.value));
    }
  }
  if (!request->trusted) add("X-Forwarded-For: " + request->client_address);  // else the other server trusts it
  if (request->headers.find("Content-Type") == nullptr) add("Content-Type:");
  return out;
}

Status Forwarder::Transfer::prepare() {
  RETURN_IF_ERROR(start_curl());
  curl_.reset(curl_easy_init());
  if (!curl_) return internal_error("libcurl gives no handle");
  CURL* const c = curl_.get();
  fields_ = fields();
  curl_easy_setopt(c, CURLOPT_URL, ("http://localhost" + target.target).c_str());
  curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, target.socket.c_str());
  curl_easy_setopt(c, CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});
  curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(c, CURLOPT_PROXY, "");
  curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  // A connection that the other server has just closed as idle would cost a request; a new one costs nothing here.
  curl_easy_setopt(c, CURLOPT_FRESH_CONNECT, 1L);
  curl_easy_setopt(c, CURLOPT_FORBID_REUSE, 1L);
  curl_easy_setopt(c, CURLOPT_HTTPHEADER, fields_.get());
  curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, long{kForwardConnectMs});
  curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, long{timeout_ms});
  curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  curl_easy_setopt(c, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, &Transfer::on_body);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(c, CURLOPT_PRIVATE, this);
  const bool reads = !request || request->method == "GET" || request->method == "HEAD";
  if (reads) return ok_status();
  curl_easy_setopt(c, CURLOPT_POST, 1L);
  curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, request->method.c_str());
  curl_easy_setopt(c, CURLOPT_POSTFIELDS, request->body.data());
  curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request->body.size()));
  return ok_status();
}

std::size_t Forwarder::Transfer::on_header(char* data, std::size_t size, std::size_t count, void* self) {
  static_cast<Transfer*>(self)->header_line({data, size * count});
  return size * count;
}

void Forwarder::Transfer::header_line(std::string_view line) {
  if (line.starts_with("HTTP/")) {  // a new head: what came was an interim one
    headers_ = {};
    type_.clear();
    has_length_ = false;
    return;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon), value = trimmed_value(line.substr(colon + 1));
  if (equals_ignore_case(name, "content-type")) type_ = value;
  has_length_ |= equals_ignore_case(name, "content-length");
  if (is_brought_back(name)) headers_.add(std::string(name), std::string(value));
}

std::size_t Forwarder::Transfer::on_body(char* data, std::size_t size, std::size_t count, void* self) {
  return static_cast<Transfer*>(self)->take({data, size * count});
}

// Any number but that of the bytes ends the transfer.
std::size_t Forwarder::Transfer::take(std::string_view bytes) {
  long status = 0;
  curl_easy_getinfo(curl_.get(), CURLINFO_RESPONSE_CODE, &status);
  status_ = static_cast<int>(status);
  // A stream of this server's is a 200.
  if (!responder || has_length_ || status_ != 200) {
    if (body_.size() + bytes.size() > kForwardBodyBytes) return 0;
    body_ += bytes;
    return bytes.size();
  }
  if (!started_ && !responder->start_stream(type_, headers_)) return 0;
  started_ = true;
  if (responder->pending_bytes() > kForwardPauseBytes) {
    paused_ = true;
    return CURL_WRITEFUNC_PAUSE;
  }
  return responder->write(bytes) ? bytes.size() : 0;
}

void Forwarder::Transfer::resume_if_read() {
  if (!paused_ || responder->pending_bytes() > kForwardPauseBytes / 2) return;
  paused_ = false;
  curl_easy_pause(curl_.get(), CURLPAUSE_CONT);
}

void Forwarder::Transfer::end(const std::string& why, const RenderFailure& render) {
  long status = 0;
  if (curl_) curl_easy_getinfo(curl_.get(), CURLINFO_RESPONSE_CODE, &status);
  if (fetched) {
    if (why.empty()) {
      fetched(ClientResponse{static_cast<int>(status), std::move(body_)});
    } else {
      fetched(Status(StatusCode::kUnavailable, why));
    }
  } else if (!why.empty() && started_) {
    responder->abort();
  } else if (!why.empty()) {
    responder->send(render(why));
  } else if (started_) {
    responder->end();
  } else if (status == 200 && !has_length_) {
    responder->start_stream(type_, headers_);  // of no bytes
    responder->end();
  } else {
    responder->send({static_cast<int>(status), std::move(headers_), type_, std::move(body_)});
  }
  if (done) done();
}

// The thread, and what it works on.
class Forwarder::Loop {
 public:
  explicit Loop(RenderFailure render) : render_(std::move(render)) {}

  Status start() {
    RETURN_IF_ERROR(start_curl());
    multi_ = curl_multi_init();
    if (multi_ == nullptr) return internal_error("libcurl gives no handle for several transfers");
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "forward");
      run();
    });
    return ok_status();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake();
    if (thread_.joinable()) thread_.join();
    if (multi_ != nullptr) curl_multi_cleanup(std::exchange(multi_, nullptr));
  }

  void add(std::shared_ptr<Transfer> transfer) {
    {
      const std::lock_guard lock(mutex_);
      if (!stopping_) {
        added_.push_back(std::move(transfer));
        wake();
        return;
      }
    }
    transfer->end("this server stops", render_);
  }

  void cancel(Transfer& transfer) {
    transfer.cancelled = true;
    wake();
  }

 private:
  void wake() {
    if (multi_ != nullptr) curl_multi_wakeup(multi_);
  }
  void run();
  bool adopt();
  void end(CURL* curl, const std::string& why);

  const RenderFailure render_;
  CURLM* multi_ = nullptr;
  std::thread thread_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::shared_ptr<Transfer>> added_;
  bool stopping_ = false;
  std::map<CURL*, std::shared_ptr<Transfer>> running_;  // of the thread
};

// Takes over what was added. False: it stops.
bool Forwarder::Loop::adopt() {
  std::vector<std::shared_ptr<Transfer>> added;
  {
    const std::lock_guard lock(mutex_);
    added.swap(added_);
    if (stopping_ && added.empty()) return false;
  }
  for (auto& transfer : added) {
    if (const Status status = transfer->prepare(); !status.ok()) {
      transfer->end(status.message(), render_);
      continue;
    }
    curl_multi_add_handle(multi_, transfer->curl());
    running_.emplace(transfer->curl(), std::move(transfer));
  }
  return true;
}

void Forwarder::Loop::end(CURL* curl, const std::string& why) {
  const auto found = running_.find(curl);
  if (found == running_.end()) return;
  const std::shared_ptr<Transfer> transfer = std::move(found->second);
  running_.erase(found);
  curl_multi_remove_handle(multi_, curl);
  transfer->end(why, render_);
}

void Forwarder::Loop::run() {
  while (adopt()) {
    int left = 0;
    curl_multi_perform(multi_, &left);
    for (int queued = 0; CURLMsg* const message = curl_multi_info_read(multi_, &queued);) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      end(message->easy_handle, code == CURLE_OK ? "" : curl_easy_strerror(code));
    }
    bool paused = false;
    std::vector<CURL*> cancelled;
    for (const auto& [curl, transfer] : running_) {
      if (transfer->cancelled) cancelled.push_back(curl);
      if (transfer->paused() && !transfer->cancelled) transfer->resume_if_read();
      paused |= transfer->paused();
    }
    for (CURL* curl : cancelled) end(curl, "the client left");
    curl_multi_poll(multi_, nullptr, 0, paused ? kPausedPollMs : kIdlePollMs, nullptr);
  }
  while (!running_.empty()) end(running_.begin()->first, "this server stops");
}

Forwarder::Forwarder(RenderFailure render_failure) : loop_(std::make_unique<Loop>(std::move(render_failure))) {}

Forwarder::~Forwarder() { stop(); }

Status Forwarder::start() { return loop_->start(); }

void Forwarder::stop() { loop_->stop(); }

void Forwarder::forward(RequestPtr request, ResponderPtr responder, ForwardTarget target, std::function<void()> done) {
  auto transfer = std::make_shared<Transfer>();
  transfer->request = std::move(request);
  transfer->responder = std::move(responder);
  transfer->target = std::move(target);
  transfer->done = std::move(done);
  transfer->responder->on_disconnect([this, weak = std::weak_ptr<Transfer>(transfer)] {
    if (const auto left = weak.lock()) loop_->cancel(*left);
  });
  loop_->add(std::move(transfer));
}

void Forwarder::fetch(ForwardTarget target, int timeout_ms, std::function<void(Result<ClientResponse>)> done) {
  auto transfer = std::make_shared<Transfer>();
  transfer->target = std::move(target);
  transfer->timeout_ms = timeout_ms;
  transfer->fetched = std::move(done);
  loop_->add(std::move(transfer));
}

}  // namespace millrace::http
