#!/usr/bin/env python3
"""Writes tests/golden/text/stop_regex.json: outputs with stop strings and stop_regex patterns, and where they end.

The model looks at the output again after each character with Python's own re, as text/stop_regex.h defines a stop:
nothing is remembered between two characters. Run from the repository's root with Debian's Python.

A case: [text, stops, patterns, include_stop, wanted text, matched stop string or pattern or null]."""
import json
import pathlib
import random
import re

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "text"
MAX_MATCH_BYTES = 2048
CONTEXT = re.compile(r"\(\?[=!]|\$|\\[bBZ]")  # what looks at the text behind a match


class Ambiguous(Exception):
    """re gives an empty match, and its fullmatch() cannot stand in for a search of one that is not empty."""


def search(pattern, so_far):
    """The leftmost match that is not empty, as (begin, end)."""
    compiled = re.compile(pattern)
    for begin in range(len(so_far)):
        if len(so_far[begin:].encode()) > MAX_MATCH_BYTES:
            continue
        match = compiled.match(so_far, begin)
        if match is None:
            continue
        if match.end() > begin:
            return begin, match.end()
        if CONTEXT.search(pattern):
            raise Ambiguous
        for end in range(begin + 1, len(so_far) + 1):
            if compiled.fullmatch(so_far, begin, end):
                return begin, end
    return None


def model(text, stops, patterns, include):
    for size in range(1, len(text) + 1):
        so_far = text[:size]
        found = []
        for i, stop in enumerate(stops):
            if so_far.endswith(stop):
                found.append((size - len(stop), 0, i, size, stop))
        for i, pattern in enumerate(patterns):
            match = search(pattern, so_far)
            if match:
                found.append((match[0], 1, i, match[1], pattern))
        if found:
            begin, _, _, end, what = min(found)
            return text[: end if include else begin], what
    return text, None


CURATED = [
    ("one two three", [], ["t[a-z]+e"]), ("aaab", [], ["a+"]), ("xxaab", [], ["a+b"]), ("xaaac", [], ["a{2,3}"]),
    ("foobar", [], ["foo(?!bar)"]), ("foobar", [], ["foo(?=bar)"]), ("food", [], [r"foo\b"]), ("a\nfoo\n", [], ["foo$"]),
    ("say: User: hi", [], [r"\bUser:"]), ("say\nUser: hi", [], [r"(?m)^User:"]), ("User: hi", [], ["^User:"]),
    ("hi User: hi", [], ["^User:"]), ("12 é 日本 ok", [], ["[日月]本"]), ("ééé", [], ["é{2}"]), ("x😀y", [], ["."]),
    ("٣ is three", [], [r"\d"]), ("naïve café", [], [r"caf\w"]), ("aXbXc", [], ["(a|b)X(?=c)"]), ("abcabc", [], [r"(abc)\1"]),
    ("Answer: 42.\nNext", [], [r"Answer: \d+\."]), ("{\"a\": {}} tail", [], [r"\{.*\}"]), ("<a>x</a>y", [], [r"(?s)<a>.*</a>"]),
    ("price 10 USD", ["USD"], [r"\d+ U"]), ("ab", ["ab"], ["ab"]), ("xab", ["b"], ["ab"]), ("xab", ["xab"], ["ab"]),
    ("xab", ["ab"], ["b"]), ("xabc", [], ["abc", "bc", "xabc"]), ("xabc", [], ["c", "bc"]), ("xabc", ["abc"], ["b.*"]),
    ("hello world", [], ["x*"]), ("hello wxrld", [], ["x*"]), ("abc", [], ["$"]), ("abc", [], ["""(?i)B"""]),
    ("line\r\nnext", [], [r"\r?\n"]), ("a b", [], [r"(?<=a )b"]), ("ab", [], [r"(?<!a)b"]), ("cb", [], [r"(?<!a)b"]),
    ("aaaa", [], ["a*?b"]), ("aaab", [], ["a*?b"]), ("none", [], ["nope", "never"]), ("abab", [], ["(?:ab){2}"]),
    ("abcd", ["bcd"], ["abc"]), ("abcd", ["abcd"], ["bcd", "abcd"]), ("stop here", ["stop", "stop here"], ["s.*e"]),
]


def random_pattern(rng, depth=0):
    parts = []
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(16)
        if kind < 6 or depth > 2:
            part = rng.choice("abcé")
        elif kind < 8:
            part = rng.choice([".", "[ab]", "[^a]", r"\w", r"\s"])
        elif kind < 11:
            part = "(" + random_pattern(rng, depth + 1) + rng.choice(["", "|" + random_pattern(rng, depth + 1)]) + ")"
        elif kind < 12:
            parts.append(rng.choice(["(?=", "(?!"]) + random_pattern(rng, depth + 1) + ")")
            continue
        elif kind < 13:
            parts.append(rng.choice(["(?<=", "(?<!"]) + rng.choice(["a", "b", "ab", "c|a"]) + ")")
            continue
        elif kind < 14:
            parts.append(rng.choice([r"\b", "$", "^", r"\B"]))
            continue
        else:
            part = rng.choice(["ab", "ba"])
        parts.append(part + rng.choice(["", "", "", "", "*", "+", "?", "{2}", "{1,2}", "+?", "*?"]) if len(part) == 1 or part[0] in "([\\" else part)
    return "".join(parts)


def main():
    rng = random.Random(11)
    cases = [(t, s, p, i) for t, s, p in CURATED for i in (False, True)]
    while len(cases) < 900:
        text = "".join(rng.choice("aaabbbccé \n") for _ in range(rng.randint(1, 24)))
        patterns = [random_pattern(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        stops = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 4))) for _ in range(rng.choice([0, 0, 1, 2]))]
        cases.append((text, stops, patterns, rng.random() < 0.5))
    lines = []
    for text, stops, patterns, include in cases:
        try:
            wanted, matched = model(text, stops, patterns, include)
        except Ambiguous:
            continue
        lines.append(json.dumps([text, stops, patterns, include, wanted, matched], ensure_ascii=False))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "stop_regex.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(len(lines), "cases,", sum('null]' not in line for line in lines), "matched,", sum(map(len, lines)), "bytes")


if __name__ == "__main__":
    main()
