// A parsed template and its rendering: the interface of this folder. No exception leaves it.
//
// Ownership: immutable after parse(). Thread safety: render() may run in any number of threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/limits.h"
#include "text/jinja/marked_string.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

class Template {
 public:
  // kInvalidArgument with "NAME, line 3: unexpected ..., wanted ..."; kTooLarge over a limit.
  static Result<Template> parse(std::string source, std::string_view name = "template", const Limits& limits = {});

  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // `variables` are the names the template sees beside the globals. `now_unix_s` is what strftime_now formats.
  Result<MarkedString> render(const std::vector<std::pair<std::string, Value>>& variables, int64_t now_unix_s) const;

  const std::string& source() const;

 private:
  struct Parsed;
  explicit Template(std::unique_ptr<const Parsed> parsed);
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace millrace::jinja
