#!/usr/bin/env python3
"""Fails when a document names a file or a function that is not there, or links to a missing file or heading.

A path with NAME or GROUP in it is a pattern and is not looked for. Others are relative to the repository or to the page."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEP = re.compile(r"`(src/[\w/]+\.cc)` `(\w+)`")
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)")
PATTERN = re.compile("NAME|GROUP")
PATH = re.compile(r"`((?:src|tests|docs|tools|scripts|models|bench|fuzz)/[\w./-]+)`")


def anchors(page):
    """The names of a page's headings, as GitHub makes them."""
    found = {}
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6} (.*)$", text, re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {name if n == 0 else f"{name}-{n}" for name, last in found.items() for n in range(last + 1)}


def main():
    faults = []
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "*.md"], capture_output=True, text=True, check=True)
    pages = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file() and name != "CHANGELOG.md"]
    for page in pages:
        name, text = page.relative_to(ROOT), page.read_text()
        for file, function in STEP.findall(text):
            path = ROOT / file
            if not path.exists() or not re.search(rf"\b{function}\(", path.read_text()):
                faults.append(f"{name}: there is no {function} in {file}")
        for link, heading in LINK.findall(text):
            target = page.parent / link if link else page
            if not target.exists():
                faults.append(f"{name}: the link {link} leads nowhere")
            elif heading and target.suffix == ".md" and heading not in anchors(target):
                faults.append(f"{name}: the link {link}#{heading} leads to no heading")
        for named in PATH.findall(text) if page.parent != ROOT / "tests/data" else []:  # which names what is fetched
            if not PATTERN.search(named) and not any((base / named).exists() for base in (ROOT, page.parent)):
                faults.append(f"{name}: there is no {named}")
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
