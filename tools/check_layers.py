#!/usr/bin/env python3
"""Fails when a folder of src/ includes a neighbour or a higher level, or is missing from src/LAYERS. Test code of src/ may also
include examples/workers/, whose workers it runs."""
import pathlib
import re
import sys

SRC = pathlib.Path(__file__).resolve().parent.parent / "src"
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)
SUFFIXES = {".h", ".cc", ".inl", ".inc"}


def read_layers():
    levels = {}
    for line in (SRC / "LAYERS").read_text().splitlines():
        if line and not line.startswith("#"):
            level, folder, _ = line.split(None, 2)
            levels[folder] = int(level)
    return levels


def main():
    levels = read_layers()
    faults = []
    for path in sorted(p for p in SRC.rglob("*") if p.suffix in SUFFIXES):
        folder = path.relative_to(SRC).parts[0]
        if folder not in levels:
            faults.append(f"{path}: folder '{folder}' is not in src/LAYERS")
            continue
        for bracket, include in INCLUDE.findall(path.read_text()):
            target = include.split("/")[0]
            ours = "/" in include and target in levels
            if bracket == "<" and not ((SRC / include).exists() or ours):
                continue  # a library's header
            if bracket == "<":
                faults.append(f"{path}: includes <{include}>; wanted \"{include}\" for a header of this project")
            is_test = path.stem.endswith("_test") or "testing" in path.parts
            if is_test and include.startswith("examples/workers/"):
                continue
            if not ours:
                faults.append(f"{path}: includes \"{include}\"; wanted a path from src/, beginning with its folder")
            elif target != folder and levels[target] >= levels[folder]:
                faults.append(f"{path}: {folder} (level {levels[folder]}) includes {include} (level {levels[target]}); "
                              "wanted lower levels only")
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
