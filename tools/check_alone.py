#!/usr/bin/env python3
"""Fails when a file does not compile alone because it lacks an include of a header of this project.

    tools/check_alone.py [--list | --all] [FILE...]    (default: every .h and .cc)

    --list   what would be compiled, and the names that are the reason
    --all    compiles every file: as long as a build takes

A build for continuous integration compiles several files as one unit (cmake/unity.cmake), in which a file sees what its
neighbours include, and a header sees what stands before it. To compile each alone costs minutes, so the names are looked
at first: a file is a suspect if it uses a type, a constant, a macro or a free function that some header declares at
namespace scope, and neither it nor a header that it includes, directly or not, has a name like it. Only suspects are
compiled, without code generation. Of 136 includes whose removal broke the file, half of them in headers, 131 made it a
suspect; the five others were in .cc files.

The sources of fuzz/ and bench/, which no other step of continuous integration compiles, are compiled each time. One that
wants a library which is not installed is named and left out.

check_includes.py looks for the headers of the standard library and of other libraries in the same way."""
import argparse
import concurrent.futures
import functools
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "cmake"))
from unity_groups import COMMENT_OR_TEXT, declared  # noqa: E402

FOLDER = ROOT / "build" / "check"
PATTERNS = [f"{folder}/*.{end}" for folder in ("src", "examples", "tests") for end in ("h", "cc")]
NOT_BUILT = ["fuzz/*.cc", "bench/*.cc"]
COMMON = """algorithm atomic chrono condition_variable cstdint cstring deque functional map memory mutex optional set span string
            string_view thread unordered_map utility variant vector fmt/core.h""".split()
OPTIONS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", f"-I{ROOT / 'src'}", f"-I{ROOT}"]
DEFINED = ['-DMILLRACE_SOURCE_DIR="check"', '-DMILLRACE_TEST_DATA="check"', '-DMILLRACE_EXTRA_TEST_DATA="check"', '-DMILLRACE_HUB_ENDPOINT="check"']

LIBRARY_MISSING = re.compile(r"fatal error: (\S+): No such file.*\n.*#include <")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)
ATTRIBUTE = re.compile(r"\[\[\w+\]\]\s*")
FORWARD = re.compile(r"^\s*(?:template <[^>]*>\s*)?(?:struct|class|enum class)\s+\w+;", re.M)
# Types and their aliases at any depth; constants; what stands before a parenthesis or is a lambda.
TYPE = re.compile(r"\b(?:struct|class|union|enum(?: class)?|using|typename|concept)\s+(?:\w+::)*(\w+)")
ENUMERATORS = re.compile(r"\benum\b[^{};]*\{([^}]*)\}")
CONSTANT = re.compile(r"\bk[A-Z]\w*\b")
FUNCTION = re.compile(r"\b([a-z_]\w*)\s*(?:\(|=\s*\[)")
# Names of other libraries, and members of objects.
FOREIGN = re.compile(r"\b(?:std|fmt|nlohmann|boost|YAML)::(?:\w+::)*\w+|(?:\.|->)\s*\w+")
GOOGLETEST = {"Test", "TempDir", "Message"}
NAME = re.compile(r"\b(?:[A-Z]|k[A-Z])\w+\b")
# A call that is no declaration of a local variable: no type stands before it.
CALL = re.compile(r"(?:\b(?:return|else|co_return|co_await|throw|case|not|and|or)|\s:\s|[^\w\s>&*~:]|&&|\b[a-z_]\w*::)\s*([a-z_]\w*)\s*\(")
# What a file declares in a class or a function of its own.
LOCAL = re.compile(r"(?<!return)(?<!case)(?<!throw)(?<!else)(?<=[\w>&*]) +[&*]?(\w+)\s*(?:[({;=\[]|$)", re.M)


@functools.cache
class Names:
    def __init__(self, path):
        text = path.read_text()
        code = ATTRIBUTE.sub("", COMMENT_OR_TEXT.sub(" ", text))
        complete = FORWARD.sub(" ", code)
        self.included = {found for name in INCLUDE.findall(text) if (found := locate(name))}
        self.scope = set(MACRO.findall(code)).union(*map(declared, complete.splitlines()))
        self.inner = set(TYPE.findall(complete)).union(self.scope, *(NAME.findall(body) for body in ENUMERATORS.findall(code)))
        self.constants = set(CONSTANT.findall(code))
        self.functions = set(FUNCTION.findall(code))
        self.local = set(LOCAL.findall(code))
        own = FOREIGN.sub("_", code)
        self.used = set(NAME.findall(own))
        self.called = set(CALL.findall(own))


def locate(name):
    return next((folder / name for folder in (ROOT / "src", ROOT) if (folder / name).is_file()), None)


@functools.cache
def closure(path):
    """This file and the headers of the project that it includes, directly or not."""
    seen, left = {path}, [path]
    while left:
        new = Names(left.pop()).included - seen
        seen |= new
        left += new
    return frozenset(seen)


def listed(*patterns):
    found = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], cwd=ROOT, capture_output=True,
                           text=True, check=True)
    return [path for line in found.stdout.splitlines() if (path := ROOT / line).is_file()]


@functools.cache
def known_names():
    """What the headers of the project declare at namespace scope."""
    return frozenset().union(*(Names(path).scope for path in listed("src/*.h"))) - GOOGLETEST


def suspicion(path):
    """The names that the file uses and finds nowhere in it and its headers."""
    own = Names(path)
    headers = [Names(header) for header in closure(path) - {path}]
    types = (own.inner | own.local).union(*(names.inner | names.constants for names in headers))
    functions = (own.scope | own.local).union(*(names.functions for names in headers))
    return sorted(((own.used - types) | (own.called - functions)) & known_names())


def precompile():
    """The common headers of the standard library, which are most of what a file costs."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    common, made = FOLDER / "common.h", FOLDER / "common.h.made"
    text = "".join(f"#include <{name}>\n" for name in COMMON)
    if not made.is_file() or made.read_text() != text or not (FOLDER / "common.h.gch").is_file():
        common.write_text(text)
        subprocess.run(["g++", *OPTIONS, "-x", "c++-header", common, "-o", FOLDER / "common.h.gch"], check=True)
        made.write_text(text)


def fault_of(path):
    """The compiler's messages, or None."""
    done = subprocess.run(["g++", *OPTIONS, *DEFINED, "-include", FOLDER / "common.h", "-Winvalid-pch", "-fsyntax-only", "-x", "c++", "-"],
                          input=f'#include "{path}"\n', capture_output=True, text=True, check=False)
    missing = LIBRARY_MISSING.search(done.stderr)
    if missing and path in listed(*NOT_BUILT):
        print(f"      {path.relative_to(ROOT)} is left out: {missing[1]} is not installed")
        return None
    return done.stderr if done.returncode else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    not_built = listed(*NOT_BUILT)
    paths = [file.resolve() for file in arguments.files] or listed(*PATTERNS) + not_built
    suspects = {path: names for path in paths if (names := suspicion(path)) or arguments.all or path in not_built}
    if arguments.list:
        for path, names in suspects.items():
            print(path.relative_to(ROOT), *names)
        return 0
    precompile()
    jobs = int(os.environ.get("MILLRACE_JOBS", len(os.sched_getaffinity(0))))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        faults = list(filter(None, pool.map(fault_of, suspects)))
    for message in faults:
        print(message, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
