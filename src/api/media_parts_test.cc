// What a part of a message may ask of a picture: limits that the model's own files set are refused by name.
#include "api/media_parts.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::api {
namespace {

// The error of a part, where the model takes pictures.
std::string refused(const std::string& text) {
  MediaFacts facts;
  facts.pictures.emplace();
  MediaParts parts(facts);
  const Json part = *parse_json(text);
  return parts.take(part, "image_url", "messages[0].content[1]", {"text"}).status().message();
}

TEST(MediaParts, LimitsOfAPictureAreRefused) {
  EXPECT_EQ(refused(R"({"type":"image_url","image_url":{"url":"data:,"},"min_pixels":4})"),
            "messages[0].content[1]: min_pixels is not supported; leave it out");
  for (const char* key : {"max_pixels", "resized_height", "resized_width", "max_dynamic_patch", "min_dynamic_patch",
                          "images_config", "media_io_kwargs", "mm_processor_kwargs"}) {
    const std::string inside = R"({"image_url":{"url":"data:,",")" + std::string(key) + R"(":1}})";
    EXPECT_EQ(refused(inside),
              "messages[0].content[1].image_url: " + std::string(key) + " is not supported; leave it out");
    const std::string null = R"({"image_url":{"url":"http://a",")" + std::string(key) + R"(":null}})";
    EXPECT_NE(refused(null).find("wanted a data: URL"), std::string::npos) << key;
  }
}

}  // namespace
}  // namespace millrace::api
