"""The other half of tokenizer_bench: Hugging Face's tokenizers over the same file. python3 tokenizer_peer.py TOKENIZER.json TEXT_FILE [rounds]"""
import os
import statistics
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402  (reads the environment when it is imported)

tokenizer = Tokenizer.from_file(sys.argv[1])
with open(sys.argv[2], encoding="utf-8", newline="") as file:
    text = file.read()
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
size = len(text.encode())
for what, texts in (("whole", [text]), ("lines", [line + "\n" for line in text.removesuffix("\n").split("\n")])):
    rates = []
    for _ in range(rounds):
        begin = time.process_time()
        tokens = sum(len(tokenizer.encode(one, add_special_tokens=False).ids) for one in texts)
        rates.append(size / 1e6 / (time.process_time() - begin))
    print(f"{what:<12} {statistics.median(rates):.2f} MB/s, {tokens} tokens")
