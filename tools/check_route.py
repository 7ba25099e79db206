#!/usr/bin/env python3
"""Fails when the way of a request grows, or when its record is not of these sources any more.

tools/route follows one streamed chat through the running program and writes tools/route.txt: the functions that stand on
a stack where the request, a token or a text is handed over, part by part. Counted are the files of these and of the
table "The way of a request" in ARCHITECTURE.md, which names what is computed on the way; the lines of code in these
files, so that a comment or a CHECK there costs nothing; and the names between "the token is text" and "the bytes are the
socket's". A function of the record that is not in its file any more means that the way has changed: run tools/route.

    tools/check_route.py --figures    prints the numbers, and the names"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "tools" / "route.txt"
MAX_FILES = 52
MAX_LINES = 7150
MAX_NAMES = 19
HEADING = "## The way of a request"
FILE = re.compile(r"`(src/[\w/]+\.(?:cc|h))`")


def read_record():
    """[(part, [(function, file)])]"""
    parts = []
    for line in RECORD.read_text().splitlines()[2:]:
        if line.startswith("  "):
            parts[-1][1].append(tuple(line.split()))
        elif line:
            parts.append((line, []))
    return parts


def name_of(function):
    """The last name; a lambda has one of its own: "submit {lambda}"."""
    plain = function.replace("::{lambda}", "")
    return plain.split("::")[-1] + (" {lambda}" if function.endswith("{lambda}") else "")


def table_files():
    """The files of the table; empty: there is none."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    section = page.split(HEADING, 1)[1].split("\n## ", 1)[0] if HEADING in page else ""
    return {file for line in section.splitlines() if line.startswith("|") for file in FILE.findall(line)}


def count_lines(text):
    """Lines of code: neither blank nor of a comment or a CHECK alone."""
    return sum(bool(line.strip()) and not line.lstrip().startswith(("//", "CHECK(")) for line in text.splitlines())


def figures(parts):
    files = sorted({file for _, frames in parts for _, file in frames} | table_files())
    texts = [frame for part, frames in parts if part.startswith("text:") for frame in frames]
    return files, sum(count_lines((ROOT / file).read_text()) for file in files), sorted({name_of(function) for function, _ in texts})


def faults_of(parts):
    for part, frames in parts:
        for function, file in frames:
            text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
            if not re.search(rf"\b{re.escape(name_of(function).split()[0])}\b", text):
                yield f"{part}: {function} is not in {file} any more: run tools/route"
    if not table_files():
        yield f"ARCHITECTURE.md: the table of '{HEADING}' names no file of src/"


def main():
    parts = read_record()
    faults = list(faults_of(parts))
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return 1
    files, lines, names = figures(parts)
    summary = f"The way of a request is {len(files)} files and {lines} lines of code, and its text has {len(names)} names"
    if "--figures" in sys.argv[1:]:
        print(f"{summary}.")
        print(f"  {', '.join(names)}")
    if len(files) <= MAX_FILES and lines <= MAX_LINES and len(names) <= MAX_NAMES:
        return 0
    print(f"{summary}; wanted at most {MAX_FILES}, {MAX_LINES} and {MAX_NAMES} (tools/check_route.py).", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
