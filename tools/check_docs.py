#!/usr/bin/env python3
"""Fails when ARCHITECTURE.md names a file or a function that is not there, or when README.md or docs/ link to a missing file."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEP = re.compile(r"`(src/[\w/]+\.cc)` `(\w+)`")
LINK = re.compile(r"\]\(([^)#:]+)\)")
PATH = re.compile(r"`((?:src|tests|docs|tools|scripts|models|bench|fuzz)/[\w./-]+)`")


def main():
    faults = []
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        text = page.read_text()
        for file, function in STEP.findall(text):
            path = ROOT / file
            if not path.exists() or not re.search(rf"\b{function}\(", path.read_text()):
                faults.append(f"{page.name}: there is no {function} in {file}")
        for link in LINK.findall(text):
            if not (page.parent / link).exists():
                faults.append(f"{page.name}: the link {link} leads nowhere")
        for named in PATH.findall(text):
            if not (ROOT / named).exists():
                faults.append(f"{page.name}: there is no {named}")
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
