#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/corpus.json: strings that tokenizers get wrong. Run from the repository's top; needs nothing but Python.

The texts are written for this project. tokenizer_golden.py asks Hugging Face tokenizers about each of them, and builds longer
texts from them with a generator that the tests repeat.
"""
import json

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>user<|end_header_id|>",
           "<s>", "</s>", "<unk>", "[INST]", "[/INST]", "<think>", "</think>", "<tool_call>", "<｜User｜>", "<｜begin▁of▁sentence｜>",
           "<|start_story|>", "<|end_story|>", "<|endofprompt|>", "<0x0A>", "<0xE4>", "<bos>", "<start_of_turn>", "<|fim_prefix|>"]

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.", "Once upon a time, there was a little girl who loved to sing.",
    "Der Fluß fließt über die Brücke; Größe: 42 m² – „schön“, nicht wahr?", "L'été dernier, j'ai mangé une crêpe à l'œuf chez Noël.",
    "¿Dónde está el niño? ¡Aquí, señor!", "Příliš žluťoučký kůň úpěl ďábelské ódy.", "Zażółć gęślą jaźń.",
    "İstanbul'da ılık bir güneş vardı; IĞDIR, ıssız.", "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.", "דג סקרן שט בים מאוכזב ולפתע מצא חברה.", "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "गहरे नीले आकाश में ऋषियों का ज्ञान चमकता है।", "ประเทศไทยมีอาหารอร่อยมากมาย", "中文文本：今天天气很好，我们去公园散步吧！",
    "日本語のテキスト。カタカナとひらがな、漢字が混ざっています。ーー", "한국어 문장입니다. 오늘은 날씨가 좋네요!", "ᄒᆞᆫ글 조합형: 각 과 힣",
    "தமிழ் மொழி அழகானது", "ქართული ენა", "Հայերեն լեզու", "ភាសាខ្មែរ", "မြန်မာဘာသာ", "አማርኛ ቋንቋ", "Tiếng Việt có nhiều dấu: ặ ệ ở ữ",
    "👋🏽 Hello 👨‍👩‍👧‍👦 family 🏳️‍🌈 flags 🇩🇪🇯🇵 keycap 1️⃣", "𝕌𝕟𝕚𝕔𝕠𝕕𝕖 𝓶𝓪𝓽𝓱 𝔣𝔯𝔞𝔨𝔱𝔲𝔯 ℝ∀x∈ℤ: x²≥0 ⇒ √x", "ﬁ ﬂ ﬆ ĳ ŉ ǅ ㎏ ① Ⅷ ½ ﷺ",
]

CODE = [
    "def f(x: int) -> int:\n    return x**2  # squared\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n", "SELECT * FROM t WHERE id='42' AND name LIKE '%x%';",
    "{\"key\": [1, 2.5, -3e10, null, true], \"nested\": {\"a\\n\": \"\\u00e9\"}}", "<html><body class=\"x\">&nbsp;</body></html>",
    "https://example.org/path?query=1&other=%20#frag", "user@example.com", "C:\\Windows\\System32\\cmd.exe", "$ rm -rf ./build && make -j8 || exit 1",
    "0x1F 1e-9 3.14159 1,234,567.89 192.168.0.1 2024-02-29T23:59:60Z", "snake_case camelCase PascalCase kebab-case SCREAMING_SNAKE a_b__c___d",
    "\\frac{a}{b} \\alpha_{i} ^{2} $$x$$", "| a | b |\n|---|---|\n| 1 | 2 |", "    indented\n\t\ttabs\n  \n\n\nblank lines", "/* comment */ // another\r\n",
]

CONTRACTIONS = ["I'm you're he's we've they'll I'd don't 'tis", "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T", "it’s rock ’n’ roll", "'s't're've'm'll'd", "''s '' 'S 'ſ x'ſ", "'LL'Ll'lL",
                "o'clock O'Reilly's", "\u017Ft\u017F '\u017F", "\u212A '\u212A"]

NUMBERS = ["1", "12", "123", "1234", "12345", "1234567890", "１２３４", "٠١٢٣٤٥", "०१२३", "Ⅻ ⅻ ½ ² ³", "a1b22c333d4444", "3.14.15", "-1 +2 ±3", "1 2  3   4", "𝟏𝟐𝟑", "一二三四五"]

SPACES = [" ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "  \n  ", "a  b", "a   b", " a", "  a", "a ", "a  ", "\ta", "a\t b", "\u00A0", "a\u00A0b", "\u3000", "a\u3000\u3000b",
          "\u2003x", "\u200Bx\u200B", "\uFEFFbom", "\u0085x\u0085", "\u180Ex \u180E", "\u2028x\u2029", "\v\f", " \v x", "line\n\n\n\n\nend", "\n\n\n", "x\n \n y", "   \n\n   x", " " * 17 + "x", "\t" * 9,
          "\n" * 33, " " * 100, "a" + " " * 40 + "b", "hello  \r\n\r\n world", "▁", "▁▁a▁b", " ▁ ", "Ġ", "ĠaĊb", "a\u202Fb", "\u1680x", "\u205Fx\u2060y"]

MARKS = ["e\u0301", "\u00E9", "e\u0323\u0302", "e\u0302\u0323", "\u1EC7", "\u0301", "\u0301\u0301a", "q\u0307\u0323", "\u1E9B\u0323", "\u212B \u00C5 A\u030A", "\u2126", "\uF900\uFA10", "\u0344", "\u0958", "\u0F73\u0F71", "\u1100\u1161\u11A8",
         "\uAC00\u11A8", "\uAC01\u11A8", "\u1100\u1161\u1161", "\u0B92\u0BD7", "\u09C7\u09BE", "\u0CC6\u0CC2\u0CD5", "\u30AB\u3099", "\u304B\u309A", "\u05D0\u05B7\u05BC", "\u0627\u0653", "a\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308",
         "a\u0345\u0300", "x\u0315\u0300\u05AE\u0316\u0062", "\u2ADC", "\U0001D15E", "\U0001D1BF", "\U0002F800", "\U00011938", "\U00011935\U00011930", "\U000105D2\u0307", "A\u08980", "\u0300\u034F\u0315", "o\u0328\u0304", "o\u0304\u0328", "s\u0323\u0307", "\u1E69",
         "\u03D3", "\u03D2\u0301", "\u1FED", "\u0385", "\u037E", "\u2000\u2001", "\u0340\u0341", "\u0374", "\u1FEF"]

NEW = ["\U0001FAE8 \U0001FAF7\U0001FADC", "\u1C89\u1C8A", "\U00031350\U0002EBF0", "\U0001E4D0\U0001E4F0", "\U00010D40\U00010D50", "\uA7CB\uA7DA", "a\u0897b", "\U0001CCF0\U0001CC00", "\U00016D40\U00016D70", "\u2427\u2FFC\u31EF", "\U0001F8B2", "\U000105C9", "\U00011380\U000113B8", "\U0001C000 \U000E0001",
       "\u0378 \U000F0000 \U0010FFFF \uFFFE \uE000"]

ODD = ["", "a", "aa", "aaa", "A", "z" * 50, "ab" * 40, "abc" * 100, "!" * 30, "=" * 64, "-" * 80, "." * 7, "?!?!?!", "~`!@#$%^&*()_+-={}[]|\\:;\"'<>,.?/", "()", "( )", "[[[]]]", "\"quoted\" 'single' «guillemets» „low“ “curly”", "a/b/c//d", "...///\n", "!!\n\n??",
       "x.\n\ny", "word.Word,word;Word", "don`t", "@user #hashtag $VAR %d &amp;", "\x00", "\x00\x01\x02\x7F", "a\x00b", "\x1B[31mred\x1B[0m", "\u00AD\u200D\u200C", "\u202Ertl\u202C", "\uFFFD", "\uFFFDa\uFFFD\uFFFD", "ÿþ", "ÃƒÂ©", "Ã©", "naïve café", "ＡＢＣ ａｂｃ", "ß ẞ SS ss", "ǆ ǅ Ǆ", "ŀl·l",
       "aꞋb", "ʰʷʲ", "ªº", "ⅰⅱⅲ", "〇", "々〆", "゛゜", "・ー", "ｶﾞ ﾊﾟ", "㍿", "ﾡ", "HelloWorldHELLOworld", "iPhone15ProMax", "ABCdefGHI", "ÄÖÜäöü", "ǅabc", "ÀÉÎÕÜ élan", "XMLHttpRequest2", "aB1cD2", "ΑΒΓαβγ", "АБВабв", "中A文b", "한A글b", "カtaカ", "e\u0301A\u0301b",
       "supercalifragilisticexpialidocious", "pneumonoultramicroscopicsilicovolcanoconiosis", "antidisestablishmentarianism", "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch", "Donaudampfschifffahrtsgesellschaftskapitän", "asdfghjklqwertyuiop", "zxcvbnmzxcvbnm", "xkcdxkcd"]


def special_cases():
    out = list(SPECIAL)
    for token in ["<|endoftext|>", "<|im_start|>", "<s>", "<|begin_of_text|>", "<｜User｜>", "<|start_story|>", "<think>"]:
        out += [f"a{token}b", f" {token} ", f"{token}{token}", f"x {token} y", token[:-1], token[1:], f"{token[:-1]} {token[-1]}", f"\n{token}\n\n", f"{token} a", f"a\u0301{token}\u0301"]
    return out


def main():
    kinds = ["x [LEFT] y", "x  [LEFT]y", "[LEFT]", "x [RIGHT]  y", "[RIGHT]\n\n", "a [LEFT] [RIGHT] b", "[RIGHT] [LEFT]", "word", "a word b", "words sword word",
             "word.word-word", "wordé éword word", "<think>x", "<think> x</think>", "\u00e9 e\u0301 caf\u00e9", "word\u0301 word\u200dx"]
    groups = [kinds, SENTENCES, CODE, CONTRACTIONS, NUMBERS, SPACES, MARKS, NEW, ODD, special_cases()]
    strings = list(dict.fromkeys(text for group in groups for text in group))
    with open("tests/golden/tokenizer/corpus.json", "w") as file:
        json.dump(strings, file, ensure_ascii=True, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
