// Bounds and messages: hostile templates end with a Status that names the line, and nothing recurses without end.
#include <gtest/gtest.h>

#include "text/jinja/template.h"

namespace millrace::jinja {
namespace {

Status status_of(const std::string& source, const Limits& limits = {}) {
  auto parsed = Template::parse(source, "t", limits);
  if (!parsed.ok()) return parsed.status();
  return parsed->render({{"l", make_list({Value::integer(1)})}}, 0).status();
}

std::string repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

void expect_limit(const std::string& source, const std::string& words, const Limits& limits = {}) {
  Status status = status_of(source, limits);
  EXPECT_EQ(status.code(), StatusCode::kTooLarge) << source.substr(0, 80) << ": " << status.message();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("t, line "), std::string::npos) << status.message();
}

TEST(JinjaLimits, Parsing) {
  Limits small;
  small.max_source_bytes = 10;
  EXPECT_EQ(status_of("{{ 'more than ten' }}", small).code(), StatusCode::kTooLarge);
  EXPECT_EQ(status_of("\xff").code(), StatusCode::kInvalidArgument);
  expect_limit("{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}", "nests more than");
  expect_limit("{{ " + repeat("[", 5000) + repeat("]", 5000) + " }}", "nests more than");
  expect_limit("{{ " + repeat("not ", 5000) + "1 }}", "nests more than");
  expect_limit("{{ " + repeat("-", 5000) + "1 }}", "nests more than");
  expect_limit("{{ " + repeat("1 if 1 else ", 5000) + "1 }}", "nests more than");
  expect_limit(repeat("{% if 1 %}", 5000) + repeat("{% endif %}", 5000), "nests more than");
  expect_limit("{% for " + repeat("(", 5000) + "a" + repeat(")", 5000) + " in l %}{% endfor %}", "nests more than");
  expect_limit("{{ 1" + repeat(" + 1", 5000) + " }}", "operations high");
  expect_limit("{{ l" + repeat("[0]", 5000) + " }}", "operations high");
  expect_limit("{{ l" + repeat("|list", 5000) + " }}", "operations high");
  expect_limit("{{ l" + repeat(".a", 5000) + " }}", "operations high");
}

TEST(JinjaLimits, LongButFlatTemplatesPass) {
  EXPECT_TRUE(status_of(repeat("{% if 0 %}a{% elif 1 %}b{% endif %}{{ 1 }}", 5000)).ok());
  EXPECT_TRUE(status_of("{{ ''" + repeat(" ~ 'x'", 5000) + " }}").ok());
  EXPECT_TRUE(status_of("{% if 0 %}" + repeat("{% elif 0 %}", 5000) + "{% endif %}").ok());
  EXPECT_TRUE(status_of("{{ [" + repeat("1,", 5000) + "] }}").ok());
}

TEST(JinjaLimits, Running) {
  Limits small;
  small.max_steps = 10'000;
  expect_limit("\n{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", "steps", small);
  small = Limits();
  small.max_cpu_ms = -1;  // over before it begins; the clock is read after some thousands of steps
  expect_limit("\n{% for a in range(100000) %}{% endfor %}", "runs for more than -1 ms", small);
  EXPECT_TRUE(status_of("{% for a in range(10) %}{% endfor %}", small).ok());
  expect_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "levels deep");
  expect_limit("{% for x in [l] recursive %}{{ loop([l]) }}{% endfor %}", "levels deep");
  small = Limits();
  small.max_output_bytes = 100;
  expect_limit("{% for i in range(200) %}x{% endfor %}", "output", small);
  expect_limit("{{ 'x' * 100000000 }}", "bytes");
  expect_limit("{{ ('x' * 1000) * 1000000000000000000000 }}", "bytes");
  expect_limit("{{ [1] * 1000000000 }}", "items");
  expect_limit("{{ range(100001) }}", "range()");
  expect_limit("{{ 'x'.center(100000000) }}", "bytes");
  expect_limit("{{ '%1000000000d' % 1 }}", "bytes");
  expect_limit("{{ '{:100000000}'.format(1) }}", "bytes");
  expect_limit("{{ 'x' | indent(100000000) }}", "bytes");
  expect_limit("{{ 2 ** 200 }}", "128 bits");
  expect_limit("{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
               "bytes");
  small = Limits();
  small.max_string_bytes = 1 << 16;
  expect_limit(
      "{% set ns = namespace(s='xx') %}{% for i in range(60) %}{% set ns.s = ns.s | replace('x', 'xx') %}{% endfor %}",
      "bytes", small);
  expect_limit("{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
               "items");
}

TEST(JinjaLimits, DeepAndCircularValues) {
  expect_limit("{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}", "deep");
  expect_limit("{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}",
               "deep");
  expect_limit("{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x.index] %}{% endfor %}",
               "deep");
  expect_limit("{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = cycler(ns.x) %}{% endfor %}",
               "deep");
  expect_limit(
      "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% for j in [ns.x] %}{% set ns.x = loop %}{% endfor "
      "%}{% endfor %}",
      "deep");
  // Namespaces may refer to themselves and to each other; they are taken apart one by one.
  EXPECT_TRUE(
      status_of("{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = [ns] %}{{ ns.x.x.x is defined }}").ok());
  EXPECT_TRUE(
      status_of(
          "{% set ns = namespace(p=0) %}{% for i in range(100000) %}{% set ns.p = namespace(p=ns.p) %}{% endfor %}")
          .ok());
  EXPECT_TRUE(
      status_of("{% set ns = namespace(p=0) %}{% for i in range(20000) %}{% set prev = ns.p %}{% macro m() %}{{ prev }}"
                "{% endmacro %}{% set ns.p = m %}{% endfor %}")
          .ok());
  EXPECT_TRUE(status_of("{% for x in l %}{{ loop.changed(loop) }}{% endfor %}").ok());
  // A value shared by itself a hundred times over has 2**100 leaves: visits are charged, hashing is refused.
  const std::string shared =
      "{% set ns = namespace(x=(1,)) %}{% for i in range(100) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}";
  Limits small;
  small.max_steps = 1'000'000;
  expect_limit(shared + "{{ ns.x }}", "steps", small);
  expect_limit(shared + "{{ ns.x | tojson }}", "steps", small);
  expect_limit(shared + "{{ {ns.x: 1} }}", "key", small);
  expect_limit(
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      "steps", small);
}

TEST(JinjaLimits, MessagesNameTheLineAndWhatWasWanted) {
  EXPECT_EQ(status_of("a\n{% if x %}\nb").message(),
            "t, line 3: unexpected the end of the template, wanted 'endif' for the 'if' of line 2");
  EXPECT_EQ(status_of("\n\n{{ 1 + }}").message(), "t, line 3: unexpected '}}', wanted an expression");
  EXPECT_EQ(status_of("{% for x l %}{% endfor %}").message(), "t, line 1: unexpected 'l', wanted 'in'");
  EXPECT_EQ(status_of("\n{% include 'x' %}").message(),
            "t, line 2: the tag 'include' is not supported in chat templates");
  EXPECT_EQ(status_of("{% for x in l %}\n{{ x }}\n{{ x.y.z }}\n{% endfor %}").message(),
            "t, line 3: 'int object' has no attribute 'y'");
  EXPECT_EQ(status_of("{{ 1 }}\n{{ raise_exception('roles must alternate') }}").message(),
            "t, line 2: roles must alternate");
  EXPECT_EQ(status_of("\n{{ nope.x }}").message(), "t, line 2: 'nope' is undefined");
  EXPECT_EQ(status_of("{{ 1 | frobnicate }}").message(), "t, line 1: no filter named 'frobnicate'");
}

}  // namespace
}  // namespace millrace::jinja
