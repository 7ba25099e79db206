"""Writes src/text/jinja/special_casing.inc from Python's Unicode tables: python3 jinja_special_casing.py > special_casing.inc"""


def literal(text):
    return "".join("\\x%02x" % byte for byte in text.encode())


print("// Characters whose upper or title case is longer than one character (Unicode SpecialCasing.txt, unconditional mappings).")
print("// {code point, upper, title}, ascending. Written by tests/oracles/jinja_special_casing.py.")
for code in range(0x110000):
    if 0xD800 <= code < 0xE000:
        continue
    upper, title = chr(code).upper(), chr(code).title()
    if len(upper) > 1 or len(title) > 1:
        print('{0x%04X, "%s", "%s"},' % (code, literal(upper), literal(title)))
