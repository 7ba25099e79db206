#!/usr/bin/env python3
"""Makes src/text/unicode_tables.inc: what Hugging Face tokenizers knows about Unicode and the libraries used here do not, or the other way round.

Two steps, because the first needs the oracle and the second the host (Debian 12):
  1. in the oracle:  python3 tokenizer_unicode.py probe probe.json        asks tokenizers 0.23 about every code point
  2. on the host:    python3 tokenizer_unicode.py tables probe.json > src/text/unicode_tables.inc
Step 2 compares with the host's unicodedata, which is Unicode 14.0 as PCRE2 10.42 is, and with libutf8proc through ctypes.
"""
import ctypes
import json
import sys
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
# A code point of the same category (and script, for Han) and the same number of UTF-8 bytes, known to Unicode 14.
STAND_INS = {("Lu", 3): 0x1E00, ("Ll", 3): 0x1E01, ("Lm", 3): 0x1D2C, ("Lo", 3): 0x1780, ("Mn", 3): 0x1DC0, ("Mc", 3): 0x0903,
             ("Nd", 3): 0x0966, ("No", 3): 0x2460, ("Po", 3): 0x2016, ("Pd", 3): 0x2010, ("So", 3): 0x2100, ("Cf", 3): 0x200B,
             ("Sm", 3): 0x2200, ("Lu", 4): 0x10400, ("Ll", 4): 0x10428, ("Lm", 4): 0x16B40, ("Lo", 4): 0x10600, ("Mn", 4): 0x1D167,
             ("Mc", 4): 0x1D165, ("Nd", 4): 0x104A0, ("No", 4): 0x10107, ("Po", 4): 0x10100, ("Pd", 4): 0x10EAD,
             ("So", 4): 0x1F600, ("Sm", 4): 0x1D6C1, ("Cf", 4): 0xE0001}
HAN_STAND_IN = 0x20000


def ranges(values):
    out = []
    for c in sorted(values):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def probe(path):
    from tokenizers import Regex, normalizers, pre_tokenizers

    def matches(pattern):
        splitter = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
        found = set()
        for i in range(0, len(CODE_POINTS), 1 << 16):
            for word, _ in splitter.pre_tokenize_str("".join(map(chr, CODE_POINTS[i:i + (1 << 16)]))):
                found.update(map(ord, word))
        return found

    def pieces(pre_tokenizer, c):
        return [word for word, _ in pre_tokenizer.pre_tokenize_str("a" + chr(c) + "b")]

    nfd, nfkd, lower, strip = normalizers.NFD(), normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents()
    punctuation, digits, words = pre_tokenizers.Punctuation(), pre_tokenizers.Digits(True), pre_tokenizers.Whitespace()
    result = {
        "categories": {name: ranges(matches(r"\p{%s}" % name)) for name in CATEGORIES},
        "han": ranges(matches(r"\p{Han}")),
        "space": ranges(matches(r"\s")),
        # U+0345 has the combining class 240, the highest: a mark with a lower one is moved before it.
        "reordered": ranges(c for c in CODE_POINTS if nfd.normalize_str("a\u0345" + chr(c)).endswith("\u0345") and c != 0x345),
        "nfkd": ranges(c for c in CODE_POINTS if nfkd.normalize_str(chr(c)) != chr(c)),
        "lower": {c: lower.normalize_str(chr(c)) for c in CODE_POINTS if lower.normalize_str(chr(c)) != chr(c)},
        "mark": ranges(c for c in CODE_POINTS if strip.normalize_str("a" + chr(c) + "b") == "ab"),
        "punctuation": ranges(c for c in CODE_POINTS if len(pieces(punctuation, c)) == 3),
        "numeric": ranges(c for c in CODE_POINTS if len(pieces(digits, c)) == 3),
        "word": ranges(c for c in CODE_POINTS if pieces(words, c) == ["a" + chr(c) + "b"]),
    }
    json.dump(result, open(path, "w"))


def expand(pairs):
    return {c for first, last in pairs for c in range(first, last + 1)}


def emit(name, kind, rows):
    line = ""
    print(f"inline constexpr {kind} {name}[] = {{")
    for row in rows:
        cell = "{" + ", ".join("0x%X" % value for value in row) + "},"
        if len(line) + len(cell) > 114:
            print("    " + line.rstrip())
            line = ""
        line += cell + " "
    print("    " + line.rstrip())
    print("};")


def tables(path):
    data = json.load(open(path))
    utf8proc = ctypes.CDLL("libutf8proc.so.2")
    utf8proc.utf8proc_get_property.restype = ctypes.POINTER(ctypes.c_uint16)  # the first two members: category, combining class
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    han = expand(data["han"])
    stand_ins = []
    for name, pairs in data["categories"].items():
        for first, last in ranges(c for c in expand(pairs) if unicodedata.category(chr(c)) != name):
            for c in range(first, last + 1):
                size = len(chr(c).encode())
                other = HAN_STAND_IN if c in han and size == 4 else STAND_INS[name, size]
                assert unicodedata.category(chr(other)) == name and len(chr(other).encode()) == size, hex(c)
                stand_ins.append((c, other))
    stand_ins.append((0x180E, STAND_INS["Cf", 3]))  # PCRE2's \s holds it, against Unicode
    rows = []
    for c, other in sorted(stand_ins):
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == other:
            rows[-1][1] = c
        else:
            rows.append([c, c, other])
    reordered, decomposed = expand(data["reordered"]), expand(data["nfkd"])
    buffer = (ctypes.c_int32 * 64)()
    inert = set()
    for c in CODE_POINTS:
        if c == 0x345:
            continue
        size = utf8proc.utf8proc_decompose_char(c, buffer, 64, 1 << 2 | 1 << 4, None)  # COMPAT | DECOMPOSE
        changes = list(buffer[:size]) != [c]
        if changes and c not in decomposed or utf8proc.utf8proc_get_property(c)[1] and c not in reordered:
            inert.add(c)
            parts = unicodedata.decomposition(chr(c)).split()
            if len(parts) == 2 and not parts[0].startswith("<"):
                inert.add(int(parts[1], 16))  # nor does this one combine with what stands before it
    lower = [(int(c), ord(to)) for c, to in data["lower"].items()
             if len(to) == 1 and utf8proc.utf8proc_tolower(int(c)) != ord(to)]
    lower += [(c, c) for c in CODE_POINTS if utf8proc.utf8proc_tolower(c) != c and str(c) not in data["lower"]]
    assert [c for c, to in data["lower"].items() if len(to) > 1] == [str(0x130)]
    print("// Made by tests/oracles/tokenizer_unicode.py from Hugging Face tokenizers 0.23, Python's unicodedata 14.0 and libutf8proc.")
    print("// clang-format off")
    emit("kStandIns", "StandIn", rows)
    emit("kNormalizationUnknown", "Range", ranges(inert))
    emit("kLowercaseOverrides", "Mapping", sorted(lower))
    for name in ("mark", "punctuation", "numeric", "word"):
        emit("k" + name.capitalize(), "Range", data[name])
    print("// clang-format on")


if __name__ == "__main__":
    {"probe": probe, "tables": tables}[sys.argv[1]](sys.argv[2])
