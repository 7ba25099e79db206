#!/usr/bin/env python3
"""Fails when a header does not compile alone.

    tools/check_headers.py [--each] [HEADER...]    (default: all; --each: each header in a unit of its own)

The start of the compiler and the headers below cost more than a header itself, so one unit holds many headers. A header
follows others in a unit only if they cannot hide a missing include. What precedes it, apart from what it includes
itself, neither declares a name at namespace scope nor defines a macro that it or a header that it includes mentions,
and includes no third-party header that it does not include. Each header precedes those that include it. Where a unit
fails, its headers are compiled one by one, and only those that fail alone are reported.

The common headers of the standard library come first, precompiled; check_includes.py finds what that hides."""
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
COMMON = """algorithm atomic chrono condition_variable cstdint cstring deque functional map memory mutex optional set span string
            string_view thread unordered_map utility variant vector fmt/core.h""".split()
OPTIONS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", f"-I{ROOT / 'src'}", f"-I{ROOT}"]
DEFINED = ['-DMILLRACE_SOURCE_DIR="check"', '-DMILLRACE_TEST_DATA="check"', '-DMILLRACE_EXTRA_TEST_DATA="check"']
MAX_HEADERS = 24  # of a unit: enough units for all cores
OURS = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
OTHERS = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.M)
MENTIONED = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")  # not as a member of an object
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)


@functools.cache
def precompiled():
    """The common headers and those of the standard library that they include."""
    text = "".join(f"#include <{name}>\n" for name in COMMON)
    done = subprocess.run(["g++", *OPTIONS, "-M", "-x", "c++", "-"], input=text, capture_output=True, text=True, check=True)
    return {*COMMON, *(path.rpartition("/")[2] for path in done.stdout.split() if re.search(r"/c\+\+/[\d.]+/\w+$", path))}


class Header:
    def __init__(self, path):
        self.path = path
        text = path.read_text()
        code = COMMENT_OR_TEXT.sub(" ", text)
        self.words = set(MENTIONED.findall(code))
        self.names = set(MACRO.findall(code)).union(*map(declared, code.splitlines()))
        self.ours = {found for name in OURS.findall(text) if (found := locate(name))}
        self.others = set(OTHERS.findall(text)) - precompiled()


def locate(name):
    return next((folder / name for folder in (ROOT / "src", ROOT) if (folder / name).is_file()), None)


@functools.cache
def header(path):
    return Header(path)


@functools.cache
def closure(path):
    """This header and those of the project that it includes, directly or not."""
    seen, left = {path}, [path]
    while left:
        new = header(left.pop()).ours - seen
        seen |= new
        left += new
    return frozenset(seen)


@functools.cache
def words(path):
    return frozenset().union(*(header(one).words for one in closure(path)))


@functools.cache
def others(path):
    return frozenset().union(*(header(one).others for one in closure(path)))


class Unit:
    def __init__(self):
        self.headers = []
        self.seen = set()
        self.others = set()

    def may_hold(self, path):
        return (len(self.headers) < MAX_HEADERS and self.others <= others(path)
                and all(words(path).isdisjoint(header(one).names) for one in self.seen - closure(path)))

    def append(self, path):
        self.headers.append(path)
        self.seen |= closure(path)
        self.others |= others(path)


def units(paths):
    found = []
    for path in sorted(paths, key=lambda path: (len(closure(path)), path)):
        unit = min((unit for unit in found if unit.may_hold(path)), key=lambda unit: len(closure(path) - unit.seen), default=None)
        if unit is None:
            unit = Unit()
            found.append(unit)
        unit.append(path)
    return [unit.headers for unit in found]


def precompile():
    FOLDER.mkdir(parents=True, exist_ok=True)
    common, made = FOLDER / "common.h", FOLDER / "common.h.made"
    text = "".join(f"#include <{name}>\n" for name in COMMON)
    if not made.is_file() or made.read_text() != text or not (FOLDER / "common.h.gch").is_file():
        common.write_text(text)
        subprocess.run(["g++", *OPTIONS, "-x", "c++-header", common, "-o", FOLDER / "common.h.gch"], check=True)
        made.write_text(text)


def compiles(paths):
    """The compiler's messages, or None."""
    includes = "".join(f'#include "{path}"\n' for path in paths)
    done = subprocess.run(["g++", *OPTIONS, *DEFINED, "-include", FOLDER / "common.h", "-Winvalid-pch", "-fsyntax-only", "-x", "c++", "-"],
                          input=includes, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else None


def faults_of(unit):
    if compiles(unit) is None:
        return []
    return [message for path in unit if (message := compiles([path]))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", action="store_true")
    parser.add_argument("headers", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    paths = [path.resolve() for path in arguments.headers]
    if not paths:
        listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/*.h", "examples/*.h", "tests/*.h"],
                                cwd=ROOT, capture_output=True, text=True, check=True)
        paths = [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]
    precompile()
    jobs = int(os.environ.get("MILLRACE_JOBS", len(os.sched_getaffinity(0))))
    work = [[path] for path in paths] if arguments.each else units(paths)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        faults = [message for found in pool.map(faults_of, work) for message in found]
    for message in faults:
        print(message, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
