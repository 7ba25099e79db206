#!/usr/bin/env python3
"""Divides source files into groups that can be compiled as one unit each; prints "GROUP FILE" lines.

Usage: unity_groups.py FILE...   (cmake/unity.cmake calls it)

Files of one unit see each other's namespace-scope names, the anonymous namespace's included. Two files share a group only
if no name that one of them defines at namespace scope is also the other's, or a project header's that the other includes.
So a group can neither redefine a name nor change which function a call finds: wherever else the name occurs in
the other file it is that of a member, a parameter or a local variable, which hides the one at namespace scope. This
project's style puts namespace-scope declarations, and nothing else of that kind, at the start of a line; a name that this
misses is a compile error.

A unit costs a second or two before its first line, for the headers and what they instantiate, so groups are large; files
with the same heavy headers come together. The limits keep a unit below 1.5 GB of the compiler's memory.
"""
import functools
import itertools
import pathlib
import re
import sys

MAX_FILES = 24
MAX_LINES = 3200
WORD = re.compile(r"[A-Za-z_]\w*")
TYPE = re.compile(r"(?:struct|class|union|enum(?: class)?)\s+(?:\w+::)?(\w+)")
USING = re.compile(r"using\s+(?:[\w:]+::)?(\w+)")
# The first name of a line that a function, a variable or a constant can have; qualified: a member or of another namespace.
DECLARED = re.compile(r"((?:\w+::)*)(~?\w+)\s*(?:[({=;\[]|$)")
FURTHER = re.compile(r", (\w+) =")
TEMPLATE = re.compile(r"^template\s*<.*?>\s*(?=$|[a-z])|^(?:inline|static|constexpr|extern|const)\s+")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
# Parsing and instantiating these takes seconds.
HEAVY = re.compile(r"^\s*#\s*include\s+<(CLI/|boost/|yaml-cpp/)", re.M)
# A name in a call that finds functions at namespace scope.
CALL = re.compile(r"(?<![\w.])(?<!->)(?<!::)([A-Za-z_]\w*)\s*\(")
# A namespace that is opened inside `millrace`, and what qualifies a name: a namespace or a class.
NAMESPACE = re.compile(r"^namespace millrace::(?:\w+::)*(\w+) \{", re.M)
DIRECTIVE = re.compile(r"^using namespace (\w+);", re.M)
QUALIFIER = re.compile(r"([A-Za-z_]\w*)\s*::")
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
# A test macro at the start of a line defines a class named after its arguments.
TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),\s*(\w+)")

# What DECLARED may find that is no name of the file's own.
KEYWORDS = {"namespace", "operator", "return", "static_assert", "TEST", "TEST_F", "TEST_P", "TYPED_TEST", "TYPED_TEST_SUITE",
            "INSTANTIATE_TEST_SUITE_P", "millrace"}

# Functions of std that a call without std:: may find by its arguments.
STD_BY_ARGUMENT = {"begin", "end", "size", "data", "swap", "get", "visit", "find", "count", "copy", "move", "fill", "equal", "sort", "min", "max",
                   "next", "prev", "advance", "distance"}

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
    further = set() if "(" in line else set(FURTHER.findall(line))  # "int a = 1, b = 2;"
    return ({match.group(2)} | further) - KEYWORDS if match and not match.group(1) else set()


def source_root(path):
    for parent in path.parents:
        if parent.name == "src":
            return parent
    raise SystemExit(f"{path}: wanted a file below src/")


@functools.cache
def header(path):
    """Of a project header: its code, what it declares at namespace scope, and the project headers that it includes."""
    text = path.read_text()
    code = COMMENT_OR_TEXT.sub(" ", text)
    return code, set().union(*map(declared, code.splitlines())), included(path, text)


def included(path, text):
    paths = (source_root(path) / name for name in INCLUDE.findall(text))
    return [path for path in paths if path.is_file()]


def all_included(direct):
    found = set()
    left = list(direct)
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left += header(path)[2]
    return found


class Source:
    def __init__(self, path):
        self.path = path
        text = path.read_text()
        self.heavy = sorted(set(HEAVY.findall(text)), reverse=True)
        self.lines = text.count("\n")
        code = COMMENT_OR_TEXT.sub(" ", text)
        self.words = set(WORD.findall(code))
        self.calls = set(CALL.findall(code))
        self.found_in_std = set().union(*(names for std_header, names in FOUND_IN_STD.items() if re.search(rf"#\s*include\s+<{std_header}>", text)))
        direct = included(path, text)
        self.headers = all_included(direct)
        self.words |= set().union(*(WORD.findall(header(path)[0]) for path in direct))
        # What a header declares is the same entity in every file.
        self.declared_in_headers = set().union(*(header(path)[1] for path in self.headers))
        shared = {"fs"} | self.declared_in_headers
        self.qualifiers = set(QUALIFIER.findall(code))
        self.namespaces = set(NAMESPACE.findall(code)).union(*(NAMESPACE.findall(header(path)[0]) for path in self.headers))
        self.directives = {}  # "using namespace": to the names that the headers have for it
        for space in DIRECTIVE.findall(code):
            of_space = (path for path in self.headers if space in NAMESPACE.findall(header(path)[0]))
            self.directives[space] = set().union(*(header(path)[1] for path in of_space))
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

    def declared_outside(self, space):
        """The names that this file uses and that it, or a header that does not open the namespace, declares."""
        outside = (path for path in self.headers if space not in NAMESPACE.findall(header(path)[0]))
        return self.words & set().union(self.names, *(header(path)[1] for path in outside))

    def disturbs(self, other):
        """Whether a name of this file means something else in the other."""
        if not other.qualifiers.isdisjoint(self.namespaces - other.namespaces):
            return True  # such as testing::Test, beside a file with millrace::testing
        if not self.namespaces.isdisjoint(other.names):
            return True  # such as a function load(), beside a file with millrace::load
        for space, names in self.directives.items():
            if space not in other.directives and not names.isdisjoint(other.declared_outside(space)):
                return True
        for name, line in self.names.items():
            if line.startswith(("using ", "namespace ")) and other.names.get(name) == line:
                continue  # the same alias in both
            if line.startswith("#"):
                clash = name in other.words
            elif line.startswith("using ") and "=" not in line:
                clash = name in other.names  # the header's own, so a file that qualifies it means the same
            else:
                in_header = name in other.declared_in_headers and (name in other.words or name not in self.declared_in_headers)
                in_std = name in other.found_in_std or name in STD_BY_ARGUMENT and name in other.calls
                clash = name in other.names or in_header or in_std
            if clash:
                return True
        return False

    def conflicts(self, other):
        return self.disturbs(other) or other.disturbs(self)


def main():
    paths = [pathlib.Path(name) for name in sorted(sys.argv[1:])]
    sources = list(map(Source, paths))
    apart = {source: set() for source in sources}  # those that must not be in its group
    for one, other in itertools.combinations(sources, 2):
        if one.conflicts(other):
            apart[one].add(other)
            apart[other].add(one)
    groups = []
    # Those with the most conflicts first: the others find a place anywhere (the order of Welsh and Powell).
    for source in sorted(sources, key=lambda source: (not source.heavy, source.heavy, -len(apart[source]))):
        for group in groups:
            if (len(group) < MAX_FILES and sum(s.lines for s in group) + source.lines <= MAX_LINES
                    and apart[source].isdisjoint(group)):
                group.append(source)
                break
        else:
            groups.append([source])
    for number, group in enumerate(groups):
        for source in group:
            print(f"{number} {source.path}")


if __name__ == "__main__":
    main()
