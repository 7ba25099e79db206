#include "grammar/reasoning.h"

#include "grammar/free_text.h"
#include "grammar/token_mark.h"

namespace millrace::grammar {

ExprPtr line_ends() { return repeat(chars(CharSet::of("\n")), 0, 2); }

// No white space before <think>: a model could write it without end, for the content has none at its beginning.
ExprPtr behind_reasoning(Rules& rules, const ExprPtr& content, const std::vector<std::string>& markers,
                         TextStart start) {
  if (start == TextStart::kContent) return content;
  const int reasoning = add_free_text(
      rules, {with_marks(kCloseReasoning, markers)},
      [&](std::size_t, int) {
        return seq({line_ends(), content});
      },
      FreeTextEnd::kAtPattern);
  if (start == TextStart::kReasons) return rule(reasoning);
  return alt({seq({text(with_marks(kOpenReasoning, markers)), rule(reasoning)}), content});
}

Rules behind_reasoning(Rules document, const std::vector<std::string>& markers, TextStart start) {
  if (start == TextStart::kContent) return document;
  Rules rules{{empty()}, {"root"}, {}};
  const ExprPtr content = rule(append_rules(rules, document));
  rules.bodies[0] = behind_reasoning(rules, content, markers, start);
  return rules;
}

}  // namespace millrace::grammar
