// A decoder in a process of its own gives the bits of one in this process, and what the process answers is not
// believed.
#include "media/media_decoder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "media/child_sandbox.h"

namespace millrace {
namespace {

const std::string kThisProgram = std::filesystem::canonical("/proc/self/exe").string();

bool go_on() { return false; }

std::vector<uint8_t> read(const std::string& name) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/" + name, std::ios::binary);
  std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_FALSE(bytes.empty()) << name;
  return bytes;
}

bool has_sandbox() { return ChildSandbox::make(kThisProgram).ok(); }

void expect_same(const Result<Image>& apart, const Result<Image>& here) {
  ASSERT_EQ(apart.ok(), here.ok()) << apart.status().to_string();
  if (!here.ok()) {
    EXPECT_EQ(apart.status().code(), here.status().code());
    EXPECT_EQ(apart.status().message(), here.status().message());
    return;
  }
  ASSERT_EQ(apart->width(), here->width());
  ASSERT_EQ(apart->height(), here->height());
  EXPECT_EQ(std::memcmp(apart->bytes().data(), here->bytes().data(), here->size_bytes()), 0);
}

TEST(MediaDecoder, AnotherProcessGivesTheSamePictureAndTheSameErrors) {
  if (!has_sandbox()) GTEST_SKIP() << "this kernel filters no system calls";
  const MediaDecoder apart(kThisProgram), here;
  for (const auto& entry : std::filesystem::directory_iterator(MILLRACE_SOURCE_DIR "/examples/pictures")) {
    if (entry.path().extension() == ".json") continue;
    std::vector<uint8_t> bytes = read("examples/pictures/" + entry.path().filename().string());
    expect_same(apart.picture(bytes, go_on), here.picture(bytes, go_on));
    bytes.resize(bytes.size() / 2);
    expect_same(apart.picture(bytes, go_on), here.picture(bytes, go_on));
  }
  const std::vector<uint8_t> text = read("README.md");
  EXPECT_FALSE(apart.picture(text, go_on).ok());
  expect_same(apart.picture(text, go_on), here.picture(text, go_on));
  expect_same(apart.picture({}, go_on), here.picture({}, go_on));
}

// A second of a ramp at 16 kHz, as 16-bit PCM.
std::vector<uint8_t> wav() {
  std::vector<uint8_t> out = {'R', 'I', 'F', 'F', 0x24, 0x7d, 0,   0,   'W', 'A',  'V',  'E',  'f', 'm', 't',
                              ' ', 16,  0,   0,   0,    1,    0,   1,   0,   0x80, 0x3e, 0,    0,   0,   0x7d,
                              0,   0,   2,   0,   16,   0,    'd', 'a', 't', 'a',  0,    0x7d, 0,   0};
  for (int i = 0; i < 16000; ++i) out.insert(out.end(), {static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8)});
  return out;
}

TEST(MediaDecoder, AnotherProcessGivesTheSameSpeech) {
  if (!has_sandbox()) GTEST_SKIP() << "this kernel filters no system calls";
  const MediaDecoder apart(kThisProgram), here;
  const std::vector<uint8_t> bytes = wav();
  const auto samples = apart.speech(bytes, {}, go_on), wanted = here.speech(bytes, {}, go_on);
  ASSERT_TRUE(samples.ok() && wanted.ok()) << samples.status().to_string();
  EXPECT_EQ(samples->size(), 16000u);
  EXPECT_EQ(*samples, *wanted);
  const AudioLimits limits{.max_seconds = 0.5};
  EXPECT_EQ(apart.speech(bytes, limits, go_on).status().message(),
            here.speech(bytes, limits, go_on).status().message());
  EXPECT_EQ(apart.speech(bytes, limits, go_on).status().code(), StatusCode::kTooLarge);
}

TEST(MediaDecoder, ARequestThatIsGoneEndsTheProcess) {
  if (!has_sandbox()) GTEST_SKIP() << "this kernel filters no system calls";
  const MediaDecoder apart(kThisProgram);
  EXPECT_EQ(apart.picture(read("examples/pictures/pictures.json"), [] { return true; }).status().code(),
            StatusCode::kCancelled);
}

// Programs that answer as a decoder might that was taken over by a file.
class MediaDecoderAnswers : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_sandbox()) GTEST_SKIP() << "this kernel filters no system calls";
  }
  ~MediaDecoderAnswers() override { std::filesystem::remove_all(folder_); }

  // `script`: of a shell; printf takes octal bytes: 1DLM, a code, width, height and the bytes that follow.
  Status answer_of(const std::string& script) {
    std::filesystem::create_directories(folder_);
    const std::string path = folder_ + "/decoder";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    ::chmod(path.c_str(), 0755);
    return MediaDecoder(path).picture(read("examples/pictures/pictures.json"), go_on).status();
  }

  const std::string folder_ = testing::TempDir() + "/media_decoder_test";
};

constexpr const char* kBegin = "printf '1DLM\\0\\0\\0\\0";

TEST_F(MediaDecoderAnswers, AreNotBelieved) {
  struct Case {
    const char* name;
    std::string script;
    const char* part;
  };
  const std::string two_by_one = std::string(kBegin) + "\\2\\0\\0\\0\\1\\0\\0\\0\\6\\0\\0\\0\\0\\0\\0\\0";
  for (const Case& each : {
           Case{"nothing", "exit 0", "fewer bytes"},
           Case{"noise", "echo abcdefghijklmnopqrstuvwxyzabcdefghijklmnop", "no answer"},
           Case{"half a header", "printf '1DLM'", "fewer bytes"},
           Case{"too few pixels", two_by_one + "abc'", "fewer bytes"},
           Case{"too many pixels", two_by_one + "abcdefg'", "more bytes"},
           Case{"another size", std::string(kBegin) + "\\2\\0\\0\\0\\1\\0\\0\\0\\7\\0\\0\\0\\0\\0\\0\\0abcdefg'",
                "wanted 6"},
           Case{"a huge picture",
                std::string(kBegin) + "\\377\\377\\0\\0\\377\\377\\0\\0\\6\\0\\0\\0\\0\\0\\0\\0abcdef'", "at most"},
           Case{"no width", std::string(kBegin) + "\\0\\0\\0\\0\\1\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0'", "at most"},
           Case{"a failure", "exit 3", "cannot be decoded"},
           Case{"a signal, which the sandbox refuses", "kill -9 $$", "cannot be decoded"},
           Case{"a long error", "printf '1DLM\\4\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\377\\377\\377\\377\\0\\0\\0\\0abc'",
                "wanted"},
       }) {
    const Status status = answer_of(each.script);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << each.name << ": " << status.to_string();
    EXPECT_NE(status.message().find(each.part), std::string::npos) << each.name << ": " << status.message();
  }
}

TEST_F(MediaDecoderAnswers, AnErrorIsTakenWithoutItsControlCharacters) {
  const Status status =
      answer_of("printf '1DLM\\4\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\5\\0\\0\\0\\0\\0\\0\\0a\\nb\\033c'");
  EXPECT_EQ(status.code(), StatusCode::kTooLarge);
  EXPECT_EQ(status.message(), "a b c");
}

TEST(MediaDecoder, WhereNoProcessStartsFilesAreDecodedHere) {
  const std::vector<uint8_t> picture = read("examples/pictures/" + [] {
    for (const auto& entry : std::filesystem::directory_iterator(MILLRACE_SOURCE_DIR "/examples/pictures")) {
      if (entry.path().extension() == ".png") return entry.path().filename().string();
    }
    return std::string();
  }());
  const MediaDecoder nowhere("/nonexistent/millrace");
  expect_same(nowhere.picture(picture, go_on), MediaDecoder().picture(picture, go_on));
  EXPECT_TRUE(nowhere.picture(picture, go_on).ok());
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == millrace::kDecodeMediaCommand) {
    millrace::decode_media({argv + 2, argv + argc});
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
