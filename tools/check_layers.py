#!/usr/bin/env python3
"""Fails when a folder of src/ includes a neighbour or a higher storey, or is missing from src/LAYERS."""
import pathlib
import re
import sys

SRC = pathlib.Path(__file__).resolve().parent.parent / "src"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def read_layers():
    storeys = {}
    for line in (SRC / "LAYERS").read_text().splitlines():
        if line and not line.startswith("#"):
            storey, folder, _ = line.split(None, 2)
            storeys[folder] = int(storey)
    return storeys


def main():
    storeys = read_layers()
    faults = []
    for path in sorted(SRC.rglob("*.h")) + sorted(SRC.rglob("*.cc")):
        folder = path.relative_to(SRC).parts[0]
        if folder not in storeys:
            faults.append(f"{path}: folder '{folder}' is not in src/LAYERS")
            continue
        for include in INCLUDE.findall(path.read_text()):
            target = include.split("/")[0]
            if "/" not in include or target not in storeys:
                faults.append(f"{path}: includes \"{include}\"; wanted a path from src/, beginning with its folder")
            elif target != folder and storeys[target] >= storeys[folder]:
                faults.append(
                    f"{path}: {folder} (storey {storeys[folder]}) includes {include} (storey {storeys[target]}); wanted lower storeys only"
                )
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
