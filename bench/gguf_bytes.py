"""What decoding reads of a GGUF file, from its header alone: the bytes that bound tokens a second (docs/performance.md, "The two numbers")."""
import os
import struct

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}  # by GGUF's type number
STRING, ARRAY = 8, 9


class Header:
    def __init__(self, path):
        with open(path, "rb") as self.file:
            if self.file.read(4) != b"GGUF":
                raise SystemExit(f"{path} is no GGUF file")
            _, tensors, values = self.one("<I"), self.one("<Q"), self.one("<Q")
            self.values = {self.text(): self.value(self.one("<I")) for _ in range(values)}
            starts = [self.tensor() for _ in range(tensors)]
            alignment = self.values.get("general.alignment", 32)
            data = -(-self.file.tell() // alignment) * alignment
        # Tensors lie one after the other: a tensor's bytes, padding included, end where the next begins.
        ends = sorted(start for _, start in starts)[1:] + [os.path.getsize(path) - data]
        self.sizes = {name: end - start for (name, start), end in zip(sorted(starts, key=lambda one: one[1]), ends)}

    def one(self, form):
        return struct.unpack(form, self.file.read(struct.calcsize(form)))[0]

    def text(self):
        return self.file.read(self.one("<Q")).decode("utf-8", "replace")

    def value(self, kind):
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, count = self.one("<I"), self.one("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.one(SCALARS[kind])

    def tensor(self):
        name = self.text()
        for _ in range(self.one("<I")):
            self.one("<Q")
        self.one("<I")
        return name, self.one("<Q")


def read_a_token(path):
    """(bytes of weights that each decoded token reads, bytes of f16 keys and values that each position before it adds)"""
    header = Header(path)
    arch = header.values["general.architecture"]

    def fact(name, otherwise=1):
        return header.values.get(f"{arch}.{name}", otherwise)
    weights = 0
    for name, size in header.sizes.items():
        if name == "token_embd.weight" and "output.weight" in header.sizes:
            continue  # one row of it is looked up; a tied one is the head as well
        weights += size * fact("expert_used_count") / fact("expert_count") if "_exps." in name else size
    heads = fact("attention.head_count")
    width = fact("attention.key_length", fact("embedding_length") // heads)
    return round(weights), 2 * 2 * fact("block_count") * fact("attention.head_count_kv", heads) * width
