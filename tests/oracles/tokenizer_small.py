#!/usr/bin/env python3
"""Trains tests/golden/tokenizer/bytes500: a byte-level BPE of 500 entries for tests that need a tokenizer and no model. Run in the oracle, from the
repository's top. It is shaped like Qwen's (NFC, split pattern, ByteLevel) and has one added token of each kind that tokenizer.json knows.
"""
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = "tests/golden/tokenizer/bytes500"
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def main():
    corpus = json.load(open("tests/golden/tokenizer/corpus.json"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False), AddedToken("[LEFT]", lstrip=True, normalized=False),
                          AddedToken("[RIGHT]", rstrip=True, normalized=False), AddedToken("word", single_word=True, normalized=False), AddedToken("é", normalized=True),
                          AddedToken("<think>x", normalized=False)])
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<|im_start|> $A <|endoftext|>",
                                                             special_tokens=[("<|im_start|>", end + 1), ("<|endoftext|>", end)])
    os.makedirs(FOLDER, exist_ok=True)
    tokenizer.save(f"{FOLDER}/tokenizer.json", pretty=False)
    config = {"add_bos_token": False, "bos_token": None, "eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>", "special": True}, "model_max_length": 1024,
              "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"}
    with open(f"{FOLDER}/tokenizer_config.json", "w") as file:
        json.dump(config, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
