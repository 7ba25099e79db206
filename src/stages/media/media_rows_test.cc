// From the placeholders that a chat template writes to the rows of pictures and audio.
#include "stages/media/media_rows.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace millrace {
namespace {

constexpr int32_t kPicture = 50, kAudio = 60;

MediaTokens tokens() {
  MediaTokens out;
  out.picture = kPicture;
  out.audio = kAudio;
  return out;
}

PromptMediaList list(const std::vector<std::pair<wire::MediaKind, int32_t>>& kinds) {
  auto out = std::make_shared<std::vector<PromptItem>>();
  for (const auto& [kind, rows] : kinds) {
    out->push_back({.media = {.kind = kind, .rows = rows, .field = fmt::format("part {}", out->size())}});
  }
  return out;
}

using wire::MediaKind;

TEST(MediaRowsTest, EachPlaceholderBecomesItsRows) {
  const auto media = list({{MediaKind::kImage, 3}, {MediaKind::kAudio, 2}, {MediaKind::kImage, 1}});
  const auto ids = expand_media({1, kPicture, 2, kAudio, kPicture}, media, tokens());
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(*ids, (std::vector<int32_t>{1, kPicture, kPicture, kPicture, 2, kAudio, kAudio, kPicture}));
  const auto placed = position_media(*ids, media, tokens());
  ASSERT_EQ(placed.size(), 3u);
  EXPECT_EQ(placed[0].begin, 1);
  EXPECT_EQ(placed[1].begin, 5);
  EXPECT_EQ(placed[2].begin, 7);
  EXPECT_EQ(placed[1].field, "part 1");
}

TEST(MediaRowsTest, AVideoIsItsGroupsWithTheirTimes) {
  constexpr int32_t kVideo = 70, kStart = 71, kEnd = 72;
  MediaTokens all = tokens();
  all.video = kVideo;
  all.frames_start = kStart;
  all.frames_end = kEnd;
  auto items = std::make_shared<std::vector<PromptItem>>();
  items->push_back({.media = {.rows = 2}, .label = "a"});
  items->push_back({.media = {.rows = 2}, .label = "bc", .continues = true});
  items->push_back({.media = {.rows = 1}, .label = "d"});
  items->push_back({.media = {.rows = 1}});
  const auto encode = [](const std::string& label) -> Result<std::vector<int32_t>> {
    return std::vector<int32_t>(label.begin(), label.end());
  };
  const auto ids = expand_media({1, kVideo, 2, kVideo, kPicture}, items, all, encode);
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  EXPECT_EQ(*ids, (std::vector<int32_t>{1, 'a', kStart, kVideo, kVideo, kEnd, 'b', 'c', kStart, kVideo, kVideo, kEnd, 2,
                                        'd', kStart, kVideo, kEnd, kPicture}));
  const auto placed = position_media(*ids, items, all);
  ASSERT_EQ(placed.size(), 4u);
  EXPECT_EQ(placed[0].begin, 3);
  EXPECT_EQ(placed[1].begin, 9);
  EXPECT_EQ(placed[2].begin, 15);
  EXPECT_EQ(placed[3].begin, 17);
  EXPECT_NE(expand_media({kVideo, kVideo}, items, all, encode).status().message().find("2 placeholders for 3"),
            std::string::npos);
  EXPECT_NE(expand_media({kPicture, kVideo, kPicture}, items, all, encode).status().message().find("wanted 70"),
            std::string::npos);
}

TEST(MediaRowsTest, TextAloneStaysAsItIs) {
  const std::vector<int32_t> text = {1, kPicture, 2};
  EXPECT_EQ(*expand_media(text, nullptr, tokens()), text) << "a placeholder's id of a client's tokens is no picture";
  EXPECT_TRUE(position_media(text, nullptr, tokens()).empty());
}

TEST(MediaRowsTest, ATemplateThatWritesOthersIsAtFault) {
  const auto message = [](const std::vector<int32_t>& ids, const PromptMediaList& media) {
    return std::string(expand_media(ids, media, tokens()).status().message());
  };
  const auto media = list({{MediaKind::kImage, 3}, {MediaKind::kAudio, 2}});
  EXPECT_NE(message({1, kPicture}, media).find("1 placeholders for 2"), std::string::npos);
  EXPECT_NE(message({kPicture, kAudio, kPicture}, media).find("3 placeholders for 2"), std::string::npos);
  EXPECT_NE(message({kAudio, kPicture}, media).find("wrote the token 60 for part 0; wanted 50"), std::string::npos);
  MediaTokens pictures = tokens();
  pictures.audio = -1;
  EXPECT_FALSE(expand_media({kPicture, kAudio}, media, pictures).ok()) << "a model without audio";
}

// A file of no pixels is enough: digests are made from the header.
std::string png_header(uint32_t width, uint32_t height) {
  std::string out("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
  for (const uint32_t edge : {width, height}) {
    for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(edge >> shift);
  }
  return out + std::string("\x08\x02\0\0\0\0\0\0\0", 9);
}

TEST(MediaRowsTest, DigestsDifferInFileSizeAndKind) {
  const PictureFacts facts;
  std::set<std::string> digests;
  for (const auto& [width, height, more, low] : std::vector<std::tuple<uint32_t, uint32_t, std::string, bool>>{
           {960, 1280, "", false}, {1280, 960, "", false}, {960, 1280, "x", false}, {960, 1280, "", true}}) {
    const auto media = read_picture(png_header(width, height) + more, low, facts);
    ASSERT_TRUE(media.ok()) << media.status().to_string();
    digests.insert(media->digest.bytes);
  }
  wire::PromptMedia audio{.kind = MediaKind::kAudio, .grid_t = 1, .grid_h = 2, .grid_w = 3};
  digests.insert(media_digest(audio));
  audio.kind = MediaKind::kImage;
  digests.insert(media_digest(audio));
  EXPECT_EQ(digests.size(), 6u);
}

TEST(MediaRowsTest, RequestsWithOtherKeysShareNoDigest) {
  const auto salted = [](const std::string& key, const std::string& digest) {
    std::vector<wire::PromptMedia> media(1);
    media[0].digest.bytes = digest;
    salt_digests(key, media);
    return media[0].digest.bytes;
  };
  const std::string a(wire::kMediaDigestBytes, 'a'), b(wire::kMediaDigestBytes, 'b');
  EXPECT_EQ(salted("", a), a);
  EXPECT_EQ(salted("4:salt1:x", a), salted("4:salt1:x", a));
  EXPECT_EQ(salted("4:salt1:x", a).size(), wire::kMediaDigestBytes);
  EXPECT_EQ((std::set<std::string>{a, salted("4:salt1:x", a), salted("4:salt1:y", a), salted("4:salt1:x", b)}).size(),
            4u);
}

}  // namespace
}  // namespace millrace
