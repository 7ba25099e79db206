// The text that SvgWriter makes, read by a checker of XML that knows nothing of the writer, and the escaping of
// XML 1.0.
#include "base/svg.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "base/utf8.h"

namespace millrace {
namespace {

// A reader of XML without prologues, comments and namespaces. It refuses what XML 1.0 refuses.
class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : left_(text) {}

  // Whether the text is one element, with line breaks behind it at most.
  bool is_document() {
    const bool element = read_element();
    while (!left_.empty() && left_.front() == '\n') left_.remove_prefix(1);
    return element && left_.empty() && is_utf8(texts_);
  }
  const std::string& texts() const { return texts_; }
  const std::map<std::string, std::string>& attributes() const { return attributes_; }

 private:
  bool take(std::string_view wanted) {
    if (!left_.starts_with(wanted)) return false;
    left_.remove_prefix(wanted.size());
    return true;
  }
  std::string name() {
    std::size_t size = 0;
    while (size < left_.size() && (std::isalnum(static_cast<unsigned char>(left_[size])) || left_[size] == '-')) ++size;
    const std::string out(left_.substr(0, size));
    left_.remove_prefix(size);
    return out;
  }
  // Up to `stop`, with its entities replaced. False for a character or an entity that may not stand there.
  bool characters(char stop, std::string& out) {
    const std::pair<std::string_view, char> entities[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&#39;", '\''}};
    while (!left_.empty() && left_.front() != stop) {
      const char c = left_.front();
      if (c == '&') {
        bool is_entity = false;
        for (const auto& [entity, plain] : entities) {
          if (!take(entity)) continue;
          out += plain;
          is_entity = true;
          break;
        }
        if (!is_entity) return false;
        continue;
      }
      if (c == '<' || (static_cast<unsigned char>(c) < 0x20 && c != '\n')) return false;
      out += c;
      left_.remove_prefix(1);
    }
    return !left_.empty();
  }
  bool read_attributes() {
    std::map<std::string, std::string> found;
    while (take(" ")) {
      const std::string key = name();
      if (key.empty() || !take("=\"") || found.contains(key)) return false;
      if (!characters('"', found[key]) || !take("\"")) return false;
    }
    attributes_.insert(found.begin(), found.end());
    return true;
  }
  bool read_element() {
    if (!take("<")) return false;
    const std::string element = name();
    if (element.empty() || !read_attributes()) return false;
    if (take("/>")) return true;
    if (!take(">")) return false;
    while (true) {
      if (!characters('<', texts_)) return false;
      if (left_.starts_with("</")) return take("</") && name() == element && take(">");
      if (!read_element()) return false;
    }
  }

  std::string_view left_;
  std::string texts_;
  std::map<std::string, std::string> attributes_;
};

std::string element_with(std::string_view text) {
  SvgWriter svg;
  svg.begin("text").attribute("name", text).text(text).end();
  return svg.take();
}

TEST(SvgWriter, NestedElementsAreOneWellFormedDocument) {
  SvgWriter svg;
  svg.begin("svg").attribute("width", 20).line_break();
  svg.begin("g").begin("line").attribute("x1", 1.25, 1).end().begin("text").text("a").text("b").end().end();
  const std::string text = svg.line_break().end().line_break().take();
  XmlReader reader(text);
  EXPECT_TRUE(reader.is_document()) << text;
  EXPECT_EQ(reader.texts(), "\nab\n");
  EXPECT_EQ(reader.attributes().at("width"), "20");
  EXPECT_EQ(reader.attributes().at("x1"), "1.2");
}

TEST(SvgWriter, AnElementWithoutContentClosesItself) {
  SvgWriter svg;
  EXPECT_EQ(svg.begin("rect").attribute("rx", 7).end().take(), "<rect rx=\"7\"/>");
}

TEST(SvgWriter, MarkupInTextAndAttributesReadsAsItWasGiven) {
  const std::string given = R"(</text><script x="1">a && 'b' &amp; ]]> "c")";
  const std::string text = element_with(given);
  XmlReader reader(text);
  ASSERT_TRUE(reader.is_document()) << text;
  EXPECT_EQ(reader.texts(), given);
  EXPECT_EQ(reader.attributes().at("name"), given);
}

TEST(SvgWriter, EveryByteMakesAWellFormedDocument) {
  for (int first = 0; first < 256; ++first) {
    for (const int second : {0x0A, 0x41, 0x80, 0xBF, 0xFF}) {
      const std::string given = {'x', static_cast<char>(first), static_cast<char>(second), 'y'};
      const std::string text = element_with(given);
      EXPECT_TRUE(XmlReader(text).is_document()) << first << ' ' << second << ": " << text;
    }
  }
}

TEST(SvgWriter, LeavesOutWhatXmlExcludes) {
  std::string controls, noncharacters = "\xEF\xBF\xBE\xEF\xBF\xBF";
  for (char c = 0; c < 0x20; ++c) controls += c;
  const std::pair<std::string, std::string> cases[] = {
      {"a" + controls + "b", "ab"},
      {"a" + noncharacters + "b", "ab"},
      {"caf\xC3\xA9 \xF0\x9F\x98\x80", "caf\xC3\xA9 \xF0\x9F\x98\x80"},
      {"a\xC3", "a" + std::string(kReplacementCharacter)},
  };
  for (const auto& [given, shown] : cases) {
    EXPECT_EQ(element_with(given), "<text name=\"" + shown + "\">" + shown + "</text>");
  }
}

TEST(SvgWriter, RefusesMisuse) {
  EXPECT_DEATH(SvgWriter().end(), "open_");
  EXPECT_DEATH(SvgWriter().attribute("x", 1), "in_start_tag_");
  EXPECT_DEATH(SvgWriter().begin("g").take(), "open_");
  EXPECT_DEATH(SvgWriter().begin("g").attribute("x", std::numeric_limits<double>::quiet_NaN()), "isfinite");
}

}  // namespace
}  // namespace millrace
