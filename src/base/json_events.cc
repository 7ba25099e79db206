#include "base/json_events.h"

#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"

namespace millrace {
namespace {

Status malformed(std::size_t position) {
  return invalid_argument("malformed JSON at byte {}; wanted one document in UTF-8", position);
}

// What nlohmann's parser calls, by these names; false ends it.
class Sax {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  Sax(JsonHandler& handler, int max_depth) : handler_(handler), max_depth_(max_depth) {}

  bool null() { return keep(handler_.null()); }
  bool boolean(bool value) { return keep(handler_.boolean(value)); }
  bool number_integer(number_integer_t value) { return keep(handler_.negative(value)); }
  bool number_unsigned(number_unsigned_t value) { return keep(handler_.natural(value)); }
  bool number_float(number_float_t value, const string_t& text) { return keep(handler_.real(value, text)); }
  bool string(string_t& value) { return keep(handler_.string(std::move(value))); }
  bool binary(binary_t&) { return keep(internal_error("a binary value in JSON")); }  // of other formats alone
  bool start_object(std::size_t) { return enter() && keep(handler_.start_object()); }
  bool key(string_t& name) { return keep(handler_.key(std::move(name))); }
  bool end_object() { return --depth_, keep(handler_.end_object()); }
  bool start_array(std::size_t) { return enter() && keep(handler_.start_array()); }
  bool end_array() { return --depth_, keep(handler_.end_array()); }
  // Its message quotes the text, which may be a secret of the client's, and a long one.
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    return keep(malformed(position));
  }

  const Status& status() const { return status_; }

 private:
  bool keep(Status status) {
    if (status.ok()) return true;
    status_ = std::move(status);
    return false;
  }
  bool enter() {
    if (depth_++ < max_depth_) return true;
    return keep(invalid_argument("JSON nested deeper than {} levels", max_depth_));
  }

  JsonHandler& handler_;
  const int max_depth_;
  int depth_ = 0;
  Status status_;
};

}  // namespace

Status read_json(std::string_view text, JsonHandler& handler, int max_depth) {
  if (text.empty()) return invalid_argument("malformed JSON at byte 1: it is empty");
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) return malformed(nul + 1);
  Sax sax(handler, max_depth);
  try {
    const bool parsed = Json::sax_parse(text.begin(), text.end(), &sax);
    CHECK(parsed == sax.status().ok());  // each false above has its reason
    return sax.status();
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "no memory left to read JSON of {} bytes", text.size());
  } catch (const std::exception& e) {
    return internal_error("JSON: {}", e.what());
  }
}

}  // namespace millrace
