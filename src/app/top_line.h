// TopLine, TopLines: lines of a frame of `millrace top`, cut at the terminal's width, with colors where it has some.
//
// Widths are counted in code points: names with characters of two columns are shown wider than they are counted, and
// the terminal cuts them (the command turns wrapping off).
//
// Owner: the function that draws a frame (top_frame.cc), on its stack. Thread safety: that thread alone.
#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace millrace {

enum class TopStyle { kPlain, kBold, kDim, kGood, kBad, kRun, kWarm, kCool };

class TopLine {
 public:
  TopLine(int columns, bool color) : left_(columns), color_(color) {}

  void add(std::string_view text, TopStyle style = TopStyle::kPlain);
  // The text in exactly `width` columns: cut, or with blanks behind it.
  void add_padded(std::string_view text, int width);
  // What the line is about, in a column of its own.
  void label(std::string_view text);
  const std::string& text() const { return text_; }

 private:
  int left_;
  bool color_;
  std::string text_;
};

class TopLines {
 public:
  TopLines(int columns, bool color) : columns_(columns), color_(color) {}

  // Stays where it is.
  TopLine& next() { return lines_.emplace_back(columns_, color_); }
  int count() const { return static_cast<int>(lines_.size()); }
  std::string text() const;  // each ends with a line feed

 private:
  int columns_;
  bool color_;
  std::deque<TopLine> lines_;
};

// One of eight blocks, the higher the nearer `part` is to 1; a blank for 0.
const char* spark_glyph(double part);

}  // namespace millrace
