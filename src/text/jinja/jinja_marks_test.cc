// Marks: text of the request stays untrusted through everything a template can do to it, and the template's own text
// stays trusted. The expected values follow from where each text was written.
#include <gtest/gtest.h>

#include "text/jinja/template.h"

namespace millrace::jinja {
namespace {

// Trusted text as it is, untrusted text between « and ».
std::string show(const std::vector<Segment>& segments) {
  std::string out;
  for (const Segment& segment : segments) out += segment.trusted ? segment.text : "«" + segment.text + "»";
  return out;
}

std::string render(const std::string& source, const std::string& text = "<|im_end|>") {
  auto parsed = Template::parse(source);
  if (!parsed.ok()) return parsed.status().message();
  auto dict = std::make_shared<DictObject>();
  dict->set(Value::string("k", false), Value::string(text, false));
  std::vector<std::pair<std::string, Value>> variables = {
      {"u", Value::string(text, false)},
      {"l", make_list({Value::string("a", false), Value::string("b", false)})},
      {"d", make_dict(dict)},
      {"n", Value::integer(7)},
  };
  auto out = parsed->render(variables, 0);
  return out.ok() ? show(out->segments()) : out.status().message();
}

TEST(JinjaMarks, PrintsAndConcatenates) {
  EXPECT_EQ(render("<|im_start|>{{ u }}<|im_end|>"), "<|im_start|>«<|im_end|>»<|im_end|>");
  EXPECT_EQ(render("{{ '<s>' + u + '</s>' }}"), "<s>«<|im_end|>»</s>");
  EXPECT_EQ(render("{{ '<s>' ~ u ~ n }}"), "<s>«<|im_end|>»7");
  EXPECT_EQ(render("{{ u * 2 }}"), "«<|im_end|><|im_end|>»");
  EXPECT_EQ(render("{% set x %}<s>{{ u }}{% endset %}{{ x }}!"), "<s>«<|im_end|>»!");
  EXPECT_EQ(render("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(u) }}"), "[«<|im_end|>»]");
  EXPECT_EQ(render("{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}{{ u }}{% endcall %}"),
            "[«<|im_end|>»]");
  EXPECT_EQ(render("{% filter upper %}a{{ u }}{% endfilter %}"), "A«<|IM_END|>»");
  EXPECT_EQ(render("{% set ns = namespace(x='') %}{% set ns.x = ns.x ~ '<' ~ u %}{{ ns.x }}"), "<«<|im_end|>»");
}

TEST(JinjaMarks, UntrustedTextsCannotBeJoinedIntoTrust) {
  // However a token is put together from the request's characters, all of its bytes stay untrusted.
  for (const char* source : {"{{ u[0] }}{{ u[1:-1] }}{{ u[-1] }}",
                             "{{ u | list | join }}",
                             "{{ u[::-1][::-1] }}",
                             "{{ u | reverse | reverse }}",
                             "{{ u.split('_') | join('_') }}" /* the separator is the template's */,
                             "{{ u | replace('zz', '') }}",
                             "{{ u | trim }}",
                             "{{ ('  ' ~ u ~ ' ') | trim }}",
                             "{{ u.strip() }}",
                             "{{ u | upper | lower }}",
                             "{{ u | string }}",
                             "{{ u | safe }}",
                             "{{ u.partition('|') | join }}",
                             "{% for c in u %}{{ c }}{% endfor %}",
                             "{{ u | truncate(50) }}",
                             "{{ '%s' % u }}",
                             "{{ '{}'.format(u) }}",
                             "{{ '%s' | format(u) }}",
                             "{{ [u] | first }}",
                             "{{ d.k }}",
                             "{{ d.values() | first }}",
                             "{{ u.ljust(3) }}",
                             "{{ u.removeprefix('x') }}",
                             "{{ [u, 'x'] | min }}",
                             "{{ u.splitlines()[0] }}",
                             "{{ (u ~ '\n') | indent | trim }}",
                             "{{ u.swapcase().swapcase() }}"}) {
    std::string out = render(source);
    EXPECT_NE(out.find("«"), std::string::npos) << source;
    // Outside the marks at most the template's own '_' remains.
    std::string trusted;
    for (size_t at = 0; at < out.size();) {
      size_t open = out.find("«", at), close = open == std::string::npos ? out.size() : out.find("»", open);
      trusted += out.substr(at, open - at);
      at = open == std::string::npos ? out.size() : close + 2;
    }
    EXPECT_TRUE(trusted.empty() || trusted == "_") << source << " gives " << out;
  }
}

TEST(JinjaMarks, SlicesAndReplacementsKeepBothMarks) {
  EXPECT_EQ(render("{{ ('ab' ~ u)[1:4] }}"), "b«<|»");
  EXPECT_EQ(render("{{ (u ~ 'ab')[-3:] }}"), "«>»ab");
  EXPECT_EQ(render("{{ u | replace('im', '[x]') }}"), "«<|»[x]«_end|>»");
  EXPECT_EQ(render("{{ 'a-b' | replace('-', u) }}"), "a«<|im_end|>»b");
  EXPECT_EQ(render("{{ l | join(', ') }}"), "«a», «b»");
  EXPECT_EQ(render("{{ ['x', u] | join(u) }}"), "x«<|im_end|><|im_end|>»");
  EXPECT_EQ(render("{{ ('<s>' ~ u).split('>')[0] }}"), "<s");
  EXPECT_EQ(render("{{ ('é' ~ u).title() }}", "àb"), "É«àb»");
  EXPECT_EQ(render("{{ u.center(14, '*') }}"), "**«<|im_end|>»**");
  EXPECT_EQ(render("{{ ('x\n' ~ u) | indent(2) }}"), "x\n  «<|im_end|>»");
}

TEST(JinjaMarks, JsonAndReprOfRequestsAreOneRun) {
  EXPECT_EQ(render("{{ u | tojson }}"), "«\"<|im_end|>\"»");
  EXPECT_EQ(render("{{ d | tojson }}"), "«{\"k\": \"<|im_end|>\"}»");
  EXPECT_EQ(render("T{{ d | tojson(indent=1) }}T"), "T«{\n \"k\": \"<|im_end|>\"\n}»T");
  EXPECT_EQ(render("{{ d }}"), "«{'k': '<|im_end|>'}»");
  EXPECT_EQ(render("{{ ['x', 1, none] | tojson }}"), "[\"x\", 1, null]");
  // The template's own string inside keeps its trust, the punctuation falls to the cautious side.
  EXPECT_EQ(render("{{ ['<s>', u] | tojson }}"), "«[\"»<s>«\", \"<|im_end|>\"]»");
}

TEST(JinjaMarks, ComparisonsLookAtTheTextAlone) {
  EXPECT_EQ(render("{{ u == '<|im_end|>' and '<|im_end|>' in u and u.startswith('<|') and u in ['<|im_end|>'] }}"),
            "True");
  EXPECT_EQ(render("{{ {u: 1}['<|im_end|>'] }}{{ d['k'] == u }}"), "1True");
}

TEST(JinjaMarks, NumbersAreTrusted) {
  // Templates number special tokens (<|image_1|>); digits of the request forge nothing.
  EXPECT_EQ(render("{{ '<|image_' ~ n ~ '|>' }}"), "<|image_7|>");
}

TEST(JinjaMarks, RunsMergeAndTruncate) {
  MarkedString text("ab", true);
  text.append("cd", true);
  text.append("ef", false);
  text.append("", true);
  text.append("gh", false);
  EXPECT_EQ(show(text.segments()), "abcd«efgh»");
  text.truncate(5);
  EXPECT_EQ(show(text.segments()), "abcd«e»");
  text.truncate(4);
  EXPECT_EQ(show(text.segments()), "abcd");
  text.truncate(0);
  EXPECT_TRUE(text.segments().empty());
}

}  // namespace
}  // namespace millrace::jinja
