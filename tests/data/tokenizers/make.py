#!/usr/bin/env python3
"""Trains the small tokenizers of this folder on the dialogues next to it, and records how many tokens
they produce for some texts. `pip install tokenizers && python3 make.py`"""

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
CORPUS = [str(path) for path in sorted((HERE.parent / "dialogues").glob("*.txt"))]
TEXTS = [
    "", " ", "\n", "The river runs over the wall, as ever.", "  two  spaces\n\tand a tab", "12345 + 67.8 = ?",
    "Größe, Übermaß", "我们明天去北京。", "日本語の文章です", "Привет, мир", "🙂👩‍👩‍👧 ❤️", "cafe\u0301 ﷺ \u0000",
    "<|special|> </s> <unk>", "fn main() { println!(\"{:?}\", [1, 2]); }", "A" * 40, "= " * 30, "aGVsbG8gd29ybGQ=",
]


def byte_level():
    """As GPT-2 and most since."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, special_tokens=["<|special|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    own.train(CORPUS, trainer)
    # Contents that such files may have, and that counting must ignore.
    own.enable_truncation(4)
    own.enable_padding(length=16)
    return own


def pieces():
    """As SentencePiece, with bytes for text without a piece: Llama 2, Gemma, the older Mistrals."""
    own = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, limit_alphabet=200, special_tokens=[
        "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
    own.pre_tokenizer = pre_tokenizers.Metaspace()
    own.train(CORPUS, trainer)
    own.pre_tokenizer = None
    return own


def unigram():
    own = Tokenizer(models.Unigram())
    own.normalizer = normalizers.NFKC()
    own.pre_tokenizer = pre_tokenizers.Metaspace()
    own.train(CORPUS, trainers.UnigramTrainer(vocab_size=700, show_progress=False, special_tokens=["<unk>", "</s>"],
                                              unk_token="<unk>"))
    return own


def main():
    counts = {}
    for name, own in [("bytes", byte_level()), ("pieces", pieces()), ("unigram", unigram())]:
        (HERE / f"{name}.json").write_text(own.to_str())
        own.no_truncation()
        own.no_padding()
        own.encode_special_tokens = True
        counts[name] = [len(own.encode(text, add_special_tokens=False).ids) for text in TEXTS]
    lines = [json.dumps({"text": text, **{name: counts[name][at] for name in counts}}) for at, text in enumerate(TEXTS)]
    (HERE / "counts.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
