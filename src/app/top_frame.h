// TopFrame: what `millrace top` shows of the events of /live/events, as lines of text. Pure: no terminal, no clock.
//
// Members that an event does not have count as 0 or empty, so that a server of another version is shown as far as it
// goes.
//
// Owner: the command. Thread safety: none.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "base/json.h"

namespace millrace {

inline constexpr std::size_t kMaxTopPoints = 120;  // of the rates: a minute

struct TopSize {
  int columns = 100;  // of characters
  int rows = 0;       // 0: as many as there are
  bool color = false;
};

class TopFrame {
 public:
  // The next event.
  void add(const Json& event);
  // Lines that end with a line feed, none longer than size.columns; for the last event, and "" before the first.
  std::string render(const TopSize& size) const;

 private:
  struct Point {
    double time_ms = 0, generated = 0, prefilled = 0;
  };
  double rate(std::size_t at, double Point::*value) const;
  std::string spark(double Point::*value, std::size_t width) const;

  std::shared_ptr<const Json> event_;  // null: none has come
  std::deque<Point> points_;
};

}  // namespace millrace
