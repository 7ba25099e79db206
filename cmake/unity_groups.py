#!/usr/bin/env python3
"""Divides source files into groups that can be compiled as one unit each; prints "GROUP FILE" lines.

Usage: unity_groups.py FILE...   (cmake/unity.cmake calls it)

Files of one unit see each other's namespace-scope names, the anonymous namespace's included. Two files share a group only
if no name that one of them defines at namespace scope occurs in the other or in a project header that the other includes.
So a group can neither redefine a name nor change which function a call finds. This project's style puts namespace-scope
declarations, and nothing else of that kind, at the start of a line; a name that this misses is a compile error.
"""
import pathlib
import re
import sys

MAX_FILES = 8
MAX_LINES = 1600
WORD = re.compile(r"[A-Za-z_]\w*")
TYPE = re.compile(r"(?:struct|class|union|enum(?: class)?)\s+(?:\w+::)?(\w+)")
USING = re.compile(r"using\s+(?:[\w:]+::)?(\w+)")
# The first name of a line that a function, a variable or a constant can have; qualified: a member or of another namespace.
DECLARED = re.compile(r"((?:\w+::)*)(~?\w+)\s*(?:[({=;\[]|$)")
TEMPLATE = re.compile(r"^template\s*<.*?>\s*(?=$|[a-z])|^(?:inline|static|constexpr|extern|const)\s+")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
# A test macro at the start of a line defines a class named after its arguments.
TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),\s*(\w+)")

# What DECLARED may find that is no name of the file's own.
KEYWORDS = {"namespace", "operator", "static_assert", "TEST", "TEST_F", "TEST_P", "TYPED_TEST", "TYPED_TEST_SUITE",
            "INSTANTIATE_TEST_SUITE_P", "millrace"}

# Functions of std that a call with an argument of std finds beside a function of ours with that name, once a
# file of the group includes the header; more of them are compile errors, and a line here.
FOUND_IN_STD = {"iomanip": {"quoted"}, "filesystem": {"quoted"}}


def declared(line):
    """The names that a line of a file introduces at namespace scope."""
    if not line[:1].isalpha() or line.startswith("namespace") and "=" not in line:
        return set()
    while TEMPLATE.match(line):
        line = TEMPLATE.sub("", line)
    for pattern in (TYPE, USING):
        match = pattern.match(line)
        if match:
            return {match.group(1)} - KEYWORDS
    match = DECLARED.search(line)
    return {match.group(2)} - KEYWORDS if match and not match.group(1) else set()


def source_root(path):
    for parent in path.parents:
        if parent.name == "src":
            return parent
    raise SystemExit(f"{path}: wanted a file below src/")


class Source:
    def __init__(self, path):
        self.path = path
        text = path.read_text()
        self.lines = text.count("\n")
        code = COMMENT_OR_TEXT.sub(" ", text)
        self.words = set(WORD.findall(code))
        for header, names in FOUND_IN_STD.items():
            if re.search(rf"#\s*include\s+<{header}>", text):
                self.words |= names
        shared = {"fs"}  # what a header declares is the same entity in every file
        for include in INCLUDE.findall(text):
            header = source_root(path) / include
            if header.is_file():
                header_code = COMMENT_OR_TEXT.sub(" ", header.read_text())
                self.words |= set(WORD.findall(header_code))
                for line in header_code.splitlines():
                    shared |= declared(line)
        self.names = {}  # to the line that introduces it
        anonymous = False
        for line in code.splitlines():
            if line.startswith("namespace {"):
                anonymous = True
            elif line.startswith("}  ") or line == "}  ":
                anonymous = False  # "}  // namespace", its comment gone
            macro = re.match(r"#\s*define\s+(\w+)", line)
            test = TEST.match(line)
            if macro:
                self.names[macro.group(1)] = line
            elif test:
                self.names[f"{test.group(1)}_{test.group(2)}_Test"] = line
            else:
                for name in declared(line) - (set() if anonymous else shared):
                    self.names[name] = line

    def disturbs(self, other):
        """Whether a name of this file occurs in the other; the same using declaration in both is harmless."""
        return any(name in other.words and not (line.startswith("using ") and other.names.get(name) == line)
                   for name, line in self.names.items())

    def conflicts(self, other):
        return self.disturbs(other) or other.disturbs(self)


def main():
    sources = [Source(pathlib.Path(name)) for name in sorted(sys.argv[1:])]
    groups = []
    for source in sources:
        for group in groups:
            if (len(group) < MAX_FILES and sum(s.lines for s in group) + source.lines <= MAX_LINES
                    and not any(source.conflicts(other) for other in group)):
                group.append(source)
                break
        else:
            groups.append([source])
    for number, group in enumerate(groups):
        for source in group:
            print(f"{number} {source.path}")


if __name__ == "__main__":
    main()
