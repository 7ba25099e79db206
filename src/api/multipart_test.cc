#include "api/multipart.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace::api {
namespace {

constexpr const char* kType = "multipart/form-data; boundary=xyz";

std::string part(const std::string& head, const std::string& content) {
  return "--xyz\r\n" + head + "\r\n\r\n" + content + "\r\n";
}

std::string field(const std::string& name, const std::string& content) {
  return part("Content-Disposition: form-data; name=\"" + name + "\"", content);
}

TEST(Multipart, FieldsAndFiles) {
  const std::string data("RIFF\0\r\n--xy\r\n", 14);
  const std::string body = field("model", "m") +
                           part(
                               "content-disposition:form-data ; Name=file; filename=\"a \\\"b\\\".wav\"\r\n"
                               "Content-Type: audio/wav",
                               data) +
                           field("prompt", "") + "--xyz--\r\nan epilogue";
  for (const char* type : {kType, "Multipart/Form-Data;charset=utf-8; Boundary=\"xyz\""}) {
    const auto parts = read_form(type, body);
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    ASSERT_EQ(parts->size(), 3u);
    EXPECT_EQ((*parts)[0].name, "model");
    EXPECT_EQ((*parts)[0].content, "m");
    EXPECT_EQ((*parts)[1].name, "file");
    EXPECT_EQ((*parts)[1].filename, "a \"b\".wav");
    EXPECT_EQ((*parts)[1].content, data);
    EXPECT_EQ((*parts)[2].content, "");
  }
  EXPECT_TRUE(read_form(kType, "--xyz--")->empty());
}

TEST(Multipart, WhatIsMalformedIsRefused) {
  const std::string good = field("a", "b") + "--xyz--";
  EXPECT_EQ(read_form("application/json", good).status().code(), StatusCode::kUnsupported);
  for (const char* type : {"multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=\"x",
                           "multipart/form-data; boundary", "multipart/form-data; boundary=other"}) {
    EXPECT_EQ(read_form(type, good).status().code(), StatusCode::kInvalidArgument) << type;
  }
  EXPECT_FALSE(read_form("multipart/form-data; boundary=" + std::string(kMaxBoundaryBytes + 1, 'b'), good).ok());
  for (const std::string& body :
       {std::string(), std::string("--xyz"), std::string("--xyz\r\n"), "x" + good, field("a", "b"), field("", "b"),
        part("Content-Type: text/plain", "b") + "--xyz--", part("no colon", "b") + "--xyz--",
        part("Content-Disposition: attachment; name=\"a\"", "b") + "--xyz--",
        part("X: " + std::string(kMaxPartHeadBytes, 'x'), "b") + "--xyz--",
        std::string("--xyz junk\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--xyz--")}) {
    EXPECT_EQ(read_form(kType, body).status().code(), StatusCode::kInvalidArgument) << body.substr(0, 80);
  }
  std::string many;
  for (std::size_t i = 0; i <= kMaxFormParts; ++i) many += field("a", "b");
  EXPECT_FALSE(read_form(kType, many + "--xyz--").ok());
}

// Every prefix of a form ends in a part list or an error; none of them is the complete form.
TEST(Multipart, CutsAreErrors) {
  const std::string body = field("model", "m") + field("file", "some bytes") + "--xyz--";
  for (std::size_t size = 0; size < body.size(); ++size) {
    EXPECT_FALSE(read_form(kType, std::string_view(body).substr(0, size)).ok()) << size;
  }
}

}  // namespace
}  // namespace millrace::api
