#!/usr/bin/env python3
"""Fails when the members of a class are defined in more than two .cc files: such a class is several classes."""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
MAX_FILES = 2
STRIP = re.compile(r'//[^\n]*|/\*.*?\*/|R"\w*\(.*?\)\w*"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
TEMPLATE_ARGUMENTS = re.compile(r"<[^<>;{}]*>")
# A definition begins a line: [return type] Class::member(. Namespaces are lower case here, classes are not.
MEMBER = re.compile(r"^[A-Za-z][^;{}()=\n]*?\b((?:[a-z]\w*::)*[A-Z]\w*(?:::[A-Z]\w*)*)::~?\w+[^\w:;{}()\n]*\(|"
                    r"^((?:[a-z]\w*::)*[A-Z]\w*(?:::[A-Z]\w*)*)::~?\w+\(", re.M)


def members(text):
    """The classes of which text defines members."""
    text = STRIP.sub("", text)
    while TEMPLATE_ARGUMENTS.search(text):
        text = TEMPLATE_ARGUMENTS.sub("", text)
    found = set()
    for match in MEMBER.finditer(text):
        name = match.group(1) or match.group(2)
        parts = [part for part in name.split("::") if part[0].isupper()]
        found.add("::".join(parts))
    return found


def declarations():
    """How many headers of each folder define a class of a name."""
    count = collections.Counter()
    for path in SRC.rglob("*.h"):
        for name in set(re.findall(r"^\s*(?:class|struct)\s+(\w+)[^;]*?\{", STRIP.sub("", path.read_text()), re.M)):
            count[path.relative_to(SRC).parts[0], name] += 1
    return count


def files_of_classes():
    files = collections.defaultdict(list)
    declared = declarations()
    for path in sorted(SRC.rglob("*.cc")):
        if not path.name.endswith("_test.cc"):
            folder = path.relative_to(SRC).parts[0]
            for name in members(path.read_text()):
                several = declared[folder, name.split("::")[-1]] > 1  # as relay/ucx and relay/nccl have each a Link
                where = path.parent.relative_to(SRC) if several else folder
                files[f"{where}/{name}"].append(path.relative_to(ROOT))
    return files


def main():
    faults = []
    for name, paths in sorted(files_of_classes().items()):
        if len(paths) > MAX_FILES:
            faults.append(f"{name}: its members are defined in {len(paths)} files ({', '.join(map(str, paths))}); wanted at most "
                          f"{MAX_FILES}. Make it several objects, each with a header and state of its own.")
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
