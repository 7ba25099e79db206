// The files of requests, fetched beside each other: limits, errors and clients that leave.
#include "api/media_fetcher.h"

#include <gtest/gtest.h>

#include <future>

#include "api/media_urls.h"
#include "http/testing/scripted_server.h"
#include "wire/prompt_media.h"

namespace millrace::api {
namespace {

using http::testing::Peer;
using http::testing::ScriptedServer;

class MediaFetcherTest : public ::testing::Test {
 protected:
  MediaFetcherTest() {
    MediaFetchOptions options;
    options.policy.domains = {"127.0.0.1"};
    options.policy.private_networks = true;
    fetcher_ = std::move(*MediaFetcher::make(std::move(options)));
  }

  std::string url(const ScriptedServer& server, const std::string& path = "/") const {
    return fmt::format("http://127.0.0.1:{}{}", server.port(), path);
  }
  std::shared_ptr<MediaFetch> make(const std::vector<std::string>& urls) {
    std::vector<FetchedMedia> files;
    for (std::size_t i = 0; i < urls.size(); ++i) files.push_back({.key = urls[i], .name = fmt::format("part[{}]", i)});
    done_ = std::make_shared<std::promise<Status>>();
    return std::make_shared<MediaFetch>(std::move(files),
                                        [done = done_](const auto&, const Status& status) { done->set_value(status); });
  }
  Status wait() { return done_->get_future().get(); }

  std::unique_ptr<MediaFetcher> fetcher_;
  std::shared_ptr<std::promise<Status>> done_;
};

TEST_F(MediaFetcherTest, AllFilesCome) {
  ScriptedServer server([](Peer& peer, const std::string& head) {
    const std::string path = head.substr(4, head.find(' ', 4) - 4);
    peer.send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", path.size(), path));
  });
  const auto fetch = make({url(server, "/a"), url(server, "/bb"), url(server, "/a")});
  ASSERT_TRUE(fetcher_->start(fetch).ok());
  EXPECT_TRUE(wait().ok());
  const std::vector<FetchedMedia> files = fetch->take_files();
  EXPECT_EQ(files[0].bytes + files[1].bytes + files[2].bytes, "/a/bb/a");
}

TEST_F(MediaFetcherTest, TheFirstErrorEndsTheOthers) {
  std::atomic<bool> left{false};
  std::promise<void> asked;  // a connection that ends before its request has come shows nothing
  ScriptedServer slow([&](Peer& peer, const std::string&) {
    asked.set_value();
    peer.wait_closed();
    left = true;
  });
  ScriptedServer bad([&](Peer& peer, const std::string&) {
    asked.get_future().wait();
    peer.send("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
  });
  const auto fetch = make({url(slow), url(bad)});
  ASSERT_TRUE(fetcher_->start(fetch).ok());
  EXPECT_EQ(wait().message(), "part[1]: its server answered 500; wanted 200");
  for (int i = 0; i < 6000 && !left; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(left);
}

TEST_F(MediaFetcherTest, TheBytesOfARequestHaveALimit) {
  const std::string large(wire::kMaxMediaBytes, 'x');
  ScriptedServer server([&](Peer& peer, const std::string&) {
    peer.send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", large.size())) && peer.send(large);
  });
  const auto fetch = make({url(server, "/a"), url(server, "/b"), url(server, "/c"), url(server, "/d")});
  ASSERT_TRUE(fetcher_->start(fetch).ok());
  const Status status = wait();
  EXPECT_EQ(status.code(), StatusCode::kTooLarge);
  EXPECT_NE(status.message().find("over 100663296 bytes"), std::string::npos) << status.message();
}

TEST_F(MediaFetcherTest, TooManyThatWaitAreRefused) {
  ScriptedServer server([](Peer& peer, const std::string&) { peer.wait_closed(); });
  std::vector<std::shared_ptr<MediaFetch>> held;
  Status status = ok_status();
  while (status.ok() && held.size() < 100) {
    held.push_back(make(std::vector<std::string>(16, url(server))));
    status = fetcher_->start(held.back());
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("wanted at most 256 together"), std::string::npos) << status.message();
  EXPECT_GE(held.size(), kMediaFetchesWaiting / 16);
  for (const auto& fetch : held) fetch->cancel();
}

TEST_F(MediaFetcherTest, StopEndsWhatRuns) {
  std::promise<void> asked;
  ScriptedServer server([&](Peer& peer, const std::string&) {
    asked.set_value();
    peer.wait_closed();
  });
  const auto fetch = make({url(server)});
  ASSERT_TRUE(fetcher_->start(fetch).ok());
  asked.get_future().wait();
  fetcher_->stop();
  EXPECT_EQ(fetcher_->start(make({url(server)})).code(), StatusCode::kUnavailable);
}

// A stored response that the request refers to may be another one when the files of the first are here.
TEST_F(MediaFetcherTest, ARequestThatChangedMeanwhileIsAConflict) {
  MediaUrls urls(fetcher_.get());
  ASSERT_EQ(*urls.find("http://127.0.0.1/a.png", std::string("input[0]")), nullptr);
  EXPECT_EQ(urls.check_complete().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(urls.wanted());
  std::vector<FetchedMedia> files = urls.take_missing();
  ASSERT_EQ(files.size(), 1u);
  files[0].bytes = "a";
  urls.set_fetched(std::move(files));
  ASSERT_EQ(*urls.find("http://127.0.0.1/b.png", std::string("input[1]")), nullptr);
  EXPECT_EQ(urls.check_complete().to_string(),
            error(StatusCode::kConflict, "input[1] has changed while files were fetched; try again").to_string());
  EXPECT_FALSE(urls.wanted());
}

TEST_F(MediaFetcherTest, SchemesThatNoOptionAllows) {
  EXPECT_EQ(fetcher_->check("file:///etc/passwd").message(),
            "the URL begins with 'file:///'; wanted a data: URL, http: or https:");
  EXPECT_EQ(fetcher_->check("ftp://127.0.0.1/").message(),
            "the URL begins with 'ftp://12'; wanted a data: URL, http: or https:");
  MediaFetchOptions files;
  files.root = ".";
  const auto reader = MediaFetcher::make(std::move(files));
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->check("http://127.0.0.1/").message(),
            "the URL begins with 'http://1'; wanted a data: URL, or file:");
}

}  // namespace
}  // namespace millrace::api
