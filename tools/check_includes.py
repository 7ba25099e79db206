#!/usr/bin/env python3
"""Fails when a header uses a name of the standard library without an include that provides it.

The include may stand in the header or in a header of this project that it includes. check_alone.py finds missing includes
of the project's own headers; the common ones of the standard library are precompiled there and in builds, which hides
that one of them is missing. This check finds that, and the same of nlohmann/json and fmt."""
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
STRIP = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
STANDARD = re.compile(r"^\s*#\s*include\s+<([\w./-]+)>", re.M)
OURS = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
NAME = re.compile(r"\bstd::(\w+)")
# name: the headers that provide it, the first the one to include.
PROVIDERS = {
    "string": "string", "to_string": "string", "string_view": "string_view string", "vector": "vector", "map": "map", "multimap": "map",
    "set": "set", "multiset": "set", "unordered_map": "unordered_map", "unordered_set": "unordered_set", "deque": "deque", "list": "list",
    "array": "array tuple span", "span": "span", "optional": "optional", "nullopt": "optional", "variant": "variant", "visit": "variant",
    "monostate": "variant", "function": "functional", "unique_ptr": "memory", "shared_ptr": "memory", "weak_ptr": "memory",
    "make_unique": "memory", "make_shared": "memory", "enable_shared_from_this": "memory", "mutex": "mutex", "lock_guard": "mutex",
    "unique_lock": "mutex", "scoped_lock": "mutex", "once_flag": "mutex", "shared_mutex": "shared_mutex",
    "condition_variable": "condition_variable", "atomic": "atomic memory", "thread": "thread", "this_thread": "thread",
    "chrono": "chrono thread condition_variable mutex", "sort": "algorithm", "min": "algorithm", "max": "algorithm", "clamp": "algorithm",
    "tuple": "tuple", "tie": "tuple", "bitset": "bitset", "numeric_limits": "limits", "filesystem": "filesystem", "ifstream": "fstream",
    "ofstream": "fstream", "stringstream": "sstream", "ostringstream": "sstream", "priority_queue": "queue", "queue": "queue",
    "exchange": "utility", "mt19937": "random", "mt19937_64": "random", "memcpy": "cstring", "memset": "cstring", "strlen": "cstring",
    "strcmp": "cstring", "any": "any", "future": "future", "promise": "future", "bit_cast": "bit", "popcount": "bit", "countr_zero": "bit",
}
# Namespaces of other libraries, and how the paths of their headers begin.
LIBRARIES = {"nlohmann": "nlohmann/", "fmt": "fmt/"}


@functools.cache
def standard_includes(path):
    """The angle-bracket includes of a header and of our headers that it includes."""
    text = path.read_text()
    found = set(STANDARD.findall(text))
    for name in OURS.findall(text):
        other = SRC / name if (SRC / name).is_file() else ROOT / name
        if other.is_file():
            found |= standard_includes(other)
    return found


def main():
    faults = []
    for path in sorted([*SRC.rglob("*.h"), *(ROOT / "examples").rglob("*.h")]):
        code = STRIP.sub("", path.read_text())
        code = re.sub(r"^\s*#.*$", "", code, flags=re.M)
        included = standard_includes(path)
        wanted = {name: PROVIDERS[name].split() for name in NAME.findall(code) if name in PROVIDERS}
        if re.search(r"\bu?int(?:8|16|32|64)_t\b", code):
            wanted["int64_t and the like"] = ["cstdint", "stdint.h"]
        for library, start in LIBRARIES.items():
            if re.search(rf"\b{library}::", code) and not any(name.startswith(start) for name in included):
                faults.append(f"{path.relative_to(ROOT)}: uses {library}:: and includes <{start}...> nowhere")
        for name, providers in sorted(wanted.items()):
            if not included.intersection(providers):
                faults.append(f"{path.relative_to(ROOT)}: uses {name} and includes <{providers[0]}> nowhere")
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
