#!/usr/bin/env python3
"""Fails when the members of a class are defined in more than two .cc files, or when tools/classes_to_split.txt is out of date.

That file lists the classes that do so today, each with its number of files. The list can only shrink: a class that needs its
line no longer, or fewer files than the line says, fails the check until the line is removed or the number lowered."""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
ALLOWED = ROOT / "tools" / "classes_to_split.txt"
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


def read_allowed():
    allowed = {}
    for line in ALLOWED.read_text().splitlines():
        if line and not line.startswith("#"):
            name, count, reason = line.split(None, 2)
            allowed[name] = int(count)
            if not reason.startswith("to be split"):
                raise SystemExit(f"{ALLOWED.name}: '{line}' gives no reason; wanted 'to be split: ...'")
    return allowed


def main():
    files, allowed = files_of_classes(), read_allowed()
    faults = []
    for name, paths in sorted(files.items()):
        limit = allowed.get(name, MAX_FILES)
        if len(paths) > limit:
            faults.append(f"{name}: its members are defined in {len(paths)} files ({', '.join(map(str, paths))}); wanted at most "
                          f"{limit}. Make it several objects, each with a header and state of its own.")
    for name, limit in sorted(allowed.items()):
        count = len(files.get(name, []))
        if count <= MAX_FILES:
            faults.append(f"{ALLOWED.name}: {name} has {count} files and needs no line any more. Remove the line.")
        elif count < limit:
            faults.append(f"{ALLOWED.name}: {name} has {count} files, the line says {limit}. Lower the number.")
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
