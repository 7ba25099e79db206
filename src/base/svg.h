// SVG text, written element by element: tags close in order, text is escaped, numbers are finite.
//
// Owner: the function that draws. Thread safety: none; one thread writes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// In text and attributes & < > " ' become entities, bytes that are not UTF-8 become U+FFFD, and characters that XML 1.0
// excludes are left out.
class SvgWriter {
 public:
  // Opens an element inside the element that is open. Its attributes precede its text and its elements.
  SvgWriter& begin(std::string_view element);
  SvgWriter& attribute(std::string_view name, std::string_view value);
  // `value` is finite. It is rounded to `decimals` digits after the point.
  SvgWriter& attribute(std::string_view name, double value, int decimals = 0);
  // Text of the open element.
  SvgWriter& text(std::string_view text);
  // Closes the element that was opened last.
  SvgWriter& end();
  // A line break for readers of the file.
  SvgWriter& line_break();

  // The document, once every element is closed. The writer is empty again.
  std::string take();

 private:
  void finish_start_tag();

  std::string out_;
  std::vector<std::string> open_;  // the names, outermost first
  bool in_start_tag_ = false;      // of open_.back(): attributes may follow
};

}  // namespace millrace
