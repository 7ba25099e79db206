#!/usr/bin/env python3
"""Fails when the way of a request grows: counts the files, and their lines, that the table "The way of a request" in
ARCHITECTURE.md names. Both numbers are what a newcomer must read to follow one request."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_FILES = 12
MAX_LINES = 2500
HEADING = "## The way of a request"
FILE = re.compile(r"`(src/[\w/]+\.(?:cc|h))`")


def main():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    if HEADING not in page:
        print(f"ARCHITECTURE.md: there is no heading '{HEADING}'", file=sys.stderr)
        return 1
    section = page.split(HEADING, 1)[1].split("\n## ", 1)[0]
    files = sorted({file for line in section.splitlines() if line.startswith("|") for file in FILE.findall(line)})
    lines = {file: (ROOT / file).read_text().count("\n") for file in files}
    total = sum(lines.values())
    if not files:
        print(f"ARCHITECTURE.md: the table of '{HEADING}' names no file of src/", file=sys.stderr)
        return 1
    if len(files) <= MAX_FILES and total <= MAX_LINES:
        return 0
    for file in files:
        print(f"{lines[file]:6} {file}", file=sys.stderr)
    print(f"The way of a request is {len(files)} files and {total} lines; wanted at most {MAX_FILES} files and {MAX_LINES} lines.",
          file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
