#!/usr/bin/env python3
"""Fails on what must not stand in the repository: absolute paths of a developer's machine, and hosts of package registries."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Built from pieces, so that this file does not contain what it looks for.
FORBIDDEN = re.compile("|".join([
    "(?<![\\w.])/wo" + "rk/", "/root" + "/", "registry\\.npm" + "js", "deb\\.deb" + "ian\\.org", "pypi\\." + "org",
]))
TEXT = {".h", ".cc", ".py", ".md", ".sh", ".txt", ".cmake", ".json", ".yaml", ".yml", ".mjs", ".js", ""}


def main():
    faults = []
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
    for name in files.stdout.splitlines():
        path = ROOT / name
        if path.suffix not in TEXT or not path.is_file() or path.stat().st_size > 1 << 20:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found = FORBIDDEN.search(line)
            if found:
                faults.append(f"{name}:{number}: '{found.group()}'")
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
