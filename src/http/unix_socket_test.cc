// A server that listens on a Unix socket too: its file, and who may call admin routes with and without keys.
#include "http/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "http/client.h"
#include "http/server.h"
#include "http/testing/test_client.h"

namespace millrace::http {
namespace {

using testing::Client;
using testing::get;
using testing::post;
using testing::Reply;

class UnixSocketTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kWarning); }
  void SetUp() override {
    char folder[] = "/tmp/unix-socket-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/s";
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  Status start(ServerOptions options) {
    server_ = std::make_unique<Server>(std::move(options));
    auto plain = [](RequestPtr in, ResponderPtr out) { out->send({.body = in->client_address + in->body}); };
    server_->add_route({.method = "GET", .pattern = "/user", .handler = plain});
    server_->add_route({.method = "POST", .pattern = "/admin", .access = Access::kAdmin, .handler = plain});
    return server_->start();
  }
  Reply tcp(const std::string& request) { return Client(server_->port()).request(request); }
  Reply local(const std::string& request) { return Client(path_).request(request); }
  bool exists() const { return std::filesystem::exists(std::filesystem::symlink_status(path_)); }

  std::string folder_, path_;
  std::unique_ptr<Server> server_;
};

const std::string kAdmin = post("/admin", "{}");

TEST_F(UnixSocketTest, MayBeTheOnlyListener) {
  ASSERT_TRUE(start({.unix_socket = path_, .tcp = false}).ok());
  EXPECT_EQ(server_->port(), 0);
  EXPECT_EQ(server_->url(), "unix:" + path_);
  EXPECT_EQ(local(get("/user")).body, "unix");
  http::Client client(parse_url(server_->url()).value(), "");
  const auto answer = client.get("/user");
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->body, "unix");
  EXPECT_EQ(client.post("/admin", "{}")->body, "unix{}");
  server_.reset();
  EXPECT_NE(client.get("/user").status().message().find("unix:" + path_), std::string::npos);
  EXPECT_FALSE(parse_url("unix:").ok());
  EXPECT_FALSE(parse_url("unix:" + std::string(108, 'x')).ok());
}

TEST_F(UnixSocketTest, ServesTheSameRoutesToThisUserAlone) {
  ASSERT_TRUE(start({.unix_socket = path_}).ok());
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(local(get("/user")).body, "unix");
  EXPECT_TRUE(tcp(get("/user")).body.starts_with("127.0.0.1:"));
  EXPECT_EQ(local("GET /user HTTP/1.1\r\nHost: any.name\r\n\r\n").status, 200);
  EXPECT_EQ(local(get("/nowhere")).status, 404);
  server_->stop();
  EXPECT_FALSE(exists());
}

TEST_F(UnixSocketTest, DrainsAsTcpDoes) {
  ASSERT_TRUE(start({.unix_socket = path_}).ok());
  Client client(path_);
  EXPECT_EQ(client.request(get("/user")).status, 200);
  EXPECT_TRUE(server_->drain(std::chrono::milliseconds(5000)));
  EXPECT_TRUE(client.wait_closed());
  EXPECT_FALSE(Client(path_).connected());
}

TEST_F(UnixSocketTest, WithoutAKeyAdminRoutesAreOnTheSocketOnly) {
  ASSERT_TRUE(start({.unix_socket = path_}).ok());
  const Reply refused = tcp(kAdmin);
  EXPECT_EQ(refused.status, 403);
  for (const char* words : {"--admin-api-key-file", "--uds", "--admin-without-key"}) {
    EXPECT_NE(refused.body.find(words), std::string::npos) << refused.body;
  }
  EXPECT_EQ(local(kAdmin).status, 200);
}

TEST_F(UnixSocketTest, OrWhereTheOptionsOpenThem) {
  ASSERT_TRUE(start({.admin_without_key = true}).ok());
  EXPECT_EQ(tcp(kAdmin).status, 200);
}

// A key counts on the socket too, and the option that opens admin routes counts without keys only.
TEST_F(UnixSocketTest, WithAKeyAdminRoutesTakeIt) {
  const auto with = [](const std::string& key) {
    return post("/admin", "{}", "Authorization: Bearer " + key + "\r\n");
  };
  ASSERT_TRUE(start({.api_key = "user", .admin_without_key = true, .unix_socket = path_}).ok());
  for (const auto& [request, want] : {std::pair(kAdmin, 401), {with("other"), 401}, {with("user"), 200}}) {
    EXPECT_EQ(tcp(request).status, want);
    EXPECT_EQ(local(request).status, want);
  }
  server_.reset();
  ASSERT_TRUE(start({.admin_api_key = "admin", .unix_socket = path_}).ok());
  for (const auto& [request, want] : {std::pair(kAdmin, 401), {with("other"), 401}, {with("admin"), 200}}) {
    EXPECT_EQ(tcp(request).status, want);
    EXPECT_EQ(local(request).status, want);
  }
  EXPECT_EQ(tcp(get("/user")).status, 200);  // there is no user key
}

TEST_F(UnixSocketTest, ADeadProcesssSocketIsReplacedALiveOnesIsNot) {
  ASSERT_TRUE(start({.unix_socket = path_}).ok());
  Server second({.unix_socket = path_});
  const Status refused = second.start();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find(path_), std::string::npos);
  EXPECT_EQ(local(get("/user")).status, 200);
  server_.reset();

  const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
  UnixSocketFile file;
  ASSERT_TRUE(file.bind(dead, path_).ok());
  ::close(dead);
  ASSERT_TRUE(exists());
  ASSERT_TRUE(start({.unix_socket = path_}).ok());
  EXPECT_EQ(local(get("/user")).status, 200);
  file.remove();  // it is another's by now
  EXPECT_EQ(local(get("/user")).status, 200);
}

TEST_F(UnixSocketTest, OtherFilesAndLongPathsAreRefused) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(start({.unix_socket = path_}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(exists());
  EXPECT_NE(start({.unix_socket = folder_ + "/no/s"}).message().find("No such file"), std::string::npos);
  EXPECT_NE(start({.unix_socket = std::string(200, 'x')}).message().find("200 bytes; wanted 1 to 107"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::http
