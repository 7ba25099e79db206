"""Random templates from a seed, rendered by python3-jinja2.

  python3 jinja_random.py SEED COUNT > ../golden/jinja/random.json
  MILLRACE_JINJA_CASES=/tmp/random.json ctest -R text.jinja_golden      (a campaign by hand, with any seed and count)

Cases whose output shows an address, a generator or a complex number are left out: those texts are Python's own business.
"""

import json
import random
import sys

from jinja_environment import render

CONTEXT = {
    "n": 3, "f": -2.5, "s": " Ab,c d", "u": "é世ß", "t": True, "nil": None, "l": [4, 1, 3], "m": [1, "b", None, 2.0, [0]],
    "d": {"k": "v", "a": 1, "x": {"k": [1, 2]}}, "users": [{"k": "z", "a": 2}, {"k": "y", "a": 1}, {"a": 2}],
}
NAMES = ["n", "f", "s", "u", "t", "nil", "l", "m", "d", "users", "undef", "v", "w"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "length", "first", "last", "list", "string", "int", "float", "abs", "round", "reverse|list",
           "sort", "unique|list", "sum", "min", "max", "join", "join('-')", "tojson", "tojson(indent=1)", "items|list", "dictsort", "default('D')", "default(0, true)",
           "indent(2)", "e", "wordcount", "replace('a', 'bb')", "batch(2)|list", "map('string')|list", "map(attribute='a')|list", "select|list", "select('string')|list",
           "reject('none')|list", "selectattr('k')|list", "rejectattr('a', 'eq', 2)|list", "map('upper')|join", "truncate(5)", "center(9)", "sort(reverse=true)",
           "sort(attribute='a')", "groupby('a')|list|length", "list|tojson", "string|length", "int(9)", "round(1)", "slice(2)|list", "map(attribute='k', default='q')|join(',')"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable", "sequence", "true", "false", "odd", "even", "eq(1)", "in([1, 'v'])", "ne none", "divisibleby 2", "lower", "upper", "lt(3)"]
METHODS = ["upper()", "strip()", "split(',')", "split()", "title()", "startswith('A')", "endswith(x)", "replace('b', 'B')", "find('c')", "count('b')", "join(['x', 'y'])", "splitlines()", "lstrip(' A')", "isdigit()",
           "keys()|list", "values()|list", "items()|list", "get('k')", "get('zz', 5)", "index(1)", "count(1)", "partition('b')", "rsplit(' ', 1)", "swapcase()", "zfill(9)", "isupper()", "capitalize()", "ljust(9)", "removeprefix(' ')", "append(1)", "k", "a", "x.k", "nope"]
LITERALS = ["0", "1", "-1", "2.5", "1e3", "'a'", "''", "'b,c'", "\"it's\"", "true", "false", "none", "[]", "{}", "[1, 2]", "('x', 1)", "{'k': 1}", "range(3)", "'%s'", "10", "' x '"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, items):
        return self.random.choice(items)

    def expression(self, depth):
        if depth <= 0:
            return self.pick(NAMES) if self.random.random() < 0.6 else self.pick(LITERALS)
        inner = lambda: self.expression(depth - 1 - self.random.randrange(2))
        kind = self.random.randrange(15)
        if kind <= 3:
            return f"({inner()} {self.pick(BINARY)} {inner()})"
        if kind == 4:
            return f"{inner()} {self.pick(BINARY)} {inner()}"
        if kind <= 7:
            return f"({inner()})|{self.pick(FILTERS)}"
        if kind == 8:
            return f"{inner()} is {self.pick(['', 'not '])}{self.pick(TESTS)}"
        if kind == 9:
            return f"({inner()}).{self.pick(METHODS)}"
        if kind == 10:
            return f"({inner()})[{inner()}]"
        if kind == 11:  # of names only: Jinja folds slices of literals, where errors become undefined values
            part = lambda: self.pick(["", "", "0", "1", "-1", "2", "-2", "n"])
            return f"({self.pick(NAMES)})[{part()}:{part()}{self.pick(['', ':', ':-1', ':2'])}]"
        if kind == 12:
            return f"({inner()} if {inner()}{self.pick([' else ' + inner(), ''])})"
        if kind == 13:
            return f"{self.pick(['not ', '-', 'not not '])}{inner()}"
        return self.pick([f"[{inner()}, {inner()}]", f"{{'k': {inner()}}}", f"({inner()}, {inner()})", f"[{inner()}]|tojson"])

    def tag(self, text):
        return "{%" + self.pick(["", "", "-"]) + " " + text + " " + self.pick(["", "", "-"]) + "%}" + self.pick(["", "", "\n", " "])

    def statement(self, depth):
        kind = self.random.randrange(12)
        if depth <= 0 or kind <= 3:
            return "{{ " + self.expression(2) + " }}" + self.pick(["", " ", "\n", "  \n  "])
        block = lambda: "".join(self.statement(depth - 1) for _ in range(self.random.randrange(1, 3)))
        if kind == 4:
            return self.pick(["text", " ", "\n", "  \n ", "é", "{# c #}", "  {#- c -#}\n"])
        if kind == 5:
            return self.tag("if " + self.expression(2)) + block() + (self.tag("else") + block() if self.random.random() < 0.5 else "") + self.tag("endif")
        if kind <= 7:
            target = self.pick(["v", "v", "v, w"])
            condition = " if " + self.expression(1) if self.random.random() < 0.2 else ""
            body = block() + self.pick(["", "{{ loop.index }}{{ loop.last }}", "{{ loop.length }}{{ loop.previtem }}", "{% if loop.index0 == 1 %}{% break %}{% endif %}", "{{ loop.nextitem }}{{ loop.revindex }}"])
            return self.tag(f"for {target} in {self.expression(1)}{condition}") + body + (self.tag("else") + block() if self.random.random() < 0.3 else "") + self.tag("endfor")
        if kind == 8:
            return self.tag(f"set {self.pick(['v', 'w', 'v, w'])} = {self.expression(2)}")
        if kind == 9:
            return self.tag("set w") + block() + self.tag("endset") + "{{ w }}"
        if kind == 10:
            return self.tag("macro mm(v, w=2)") + block() + self.tag("endmacro") + self.pick(["{{ mm(1) }}", "{{ mm(l, w='x') }}", "{{ mm()|upper }}"])
        return self.tag("set ns = namespace(a=1)") + self.tag("set ns.a = " + self.expression(1)) + "{{ ns.a }}"


def main(seed, count):
    generator, cases, index = Generator(seed), [], 0
    while len(cases) < count:
        template = "".join(generator.statement(2) for _ in range(generator.random.randrange(1, 3)))
        result = render(template, CONTEXT)
        text = result.get("expected", "")
        if any(word in text for word in ("object at 0x", "generator", "<built-in", "<bound", "<Macro", "<function", "Undefined", "Namespace", "j)", "<class", "LoopContext")):
            continue
        if len(text) > 300 or (seed == 1 and "error" in result and generator.random.random() < 0.6):
            continue  # the committed file is small and mostly of templates that work
        cases.append({"template": template} | ({"error": result["error"][:40]} if "error" in result else result))
    print('{"context":' + json.dumps(CONTEXT, ensure_ascii=False) + ',\n"cases":[')
    print(",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases))
    print("]}")


main(int(sys.argv[1]), int(sys.argv[2]))
