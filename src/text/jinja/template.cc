#include "text/jinja/template.h"

#include <new>

#include "base/utf8.h"
#include "text/jinja/ast.h"
#include "text/jinja/code_points.h"
#include "text/jinja/error.h"
#include "text/jinja/parser.h"
#include "text/jinja/render_state.h"
#include "text/jinja/statements.h"

namespace millrace::jinja {

struct Template::Parsed {
  std::string source;
  std::string name;
  Limits limits;
  Block body;
};

Template::Template(std::unique_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

const std::string& Template::source() const { return parsed_->source; }

namespace {

Status to_status(const TemplateError& error, std::string_view name, int line) {
  return Status(error.code, fmt::format("{}, line {}: {}", name, error.line > 0 ? error.line : line, error.message));
}

}  // namespace

Result<Template> Template::parse(std::string source, std::string_view name, const Limits& limits) {
  if (source.size() > limits.max_source_bytes) {
    return error(StatusCode::kTooLarge, "{} has {} bytes; the limit is {}", name, source.size(),
                 limits.max_source_bytes);
  }
  if (utf8_find_invalid(source) != std::string_view::npos) return invalid_argument("{} is not valid UTF-8", name);
  auto parsed = std::make_unique<Parsed>();
  parsed->source = std::move(source);
  parsed->name = name;
  parsed->limits = limits;
  try {
    parsed->body = parse_template(parsed->source, limits);
  } catch (const TemplateError& error) {
    return to_status(error, name, 1);
  }
  return Template(std::move(parsed));
}

Result<MarkedString> Template::render(const std::vector<std::pair<std::string, Value>>& variables,
                                      int64_t now_unix_s) const {
  RenderState state(parsed_->limits, now_unix_s);
  try {
    return StatementRunner(state).run(parsed_->body, variables);
  } catch (const TemplateError& error) {
    return to_status(error, parsed_->name, state.line);
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kTooLarge, "{}, line {}: out of memory", parsed_->name, state.line);
  }
}

}  // namespace millrace::jinja
