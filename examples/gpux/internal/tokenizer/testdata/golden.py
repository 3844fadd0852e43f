# SPDX-License-Identifier: Apache-2.0
"""Makes the tokenizers of this folder, and golden.json.gz with the token ids of 1,000 strings.

The ids are those of the package tokenizers. The words are from the translations of Django, whose
license is ../../../languages/LICENSE.django. The files were made with

    pip install tokenizers==0.23.3 Django==5.2.19
    python golden.py
"""

import gettext
import gzip
import json
import pathlib
import random
import unicodedata

import django
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

LANGUAGES = "ar bg de el es fa fi fr he hi ja ko pl ru ta th tr uk vi zh_Hans".split()
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]


def translations():
    root = pathlib.Path(django.__file__).parent
    for language in LANGUAGES:
        for path in sorted(root.glob(f"**/locale/{language}/LC_MESSAGES/django.mo")):
            with path.open("rb") as f:
                catalog = gettext.GNUTranslations(f)._catalog
            yield from sorted(v for k, v in catalog.items() if k)


def wordpiece(corpus, normalizer, post, pad=None):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=2500, special_tokens=BERT, show_progress=False))
    t.post_processor = post
    if pad:
        t.enable_padding(pad_id=0, pad_token="[PAD]")
    return t


def bytelevel(corpus, prefix_space, special):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    t.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=2500, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


def tokenizers(corpus):
    template = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    roberta = bytelevel(corpus, True, ROBERTA)
    roberta.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    mask = {"id": roberta.get_vocab_size(), "content": "<mask>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False, "special": True}
    roberta = json.loads(roberta.to_str())
    roberta["added_tokens"].append(mask)
    roberta["added_tokens"].append({**mask, "id": mask["id"] + 1, "content": "<|Both|>", "rstrip": True, "normalized": True, "special": False})
    roberta["model"]["merges"] = [" ".join(pair) for pair in roberta["model"]["merges"]]  # the older form
    gpt2 = bytelevel(corpus, False, ["<|endoftext|>"])
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    uncased = wordpiece(corpus, normalizers.BertNormalizer(), template, pad=True)
    uncased.enable_truncation(256)
    cased = wordpiece(corpus, normalizers.BertNormalizer(lowercase=False), processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)))
    sequence = json.loads(wordpiece(corpus, normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), None).to_str())
    sequence["added_tokens"].append({**mask, "id": len(sequence["model"]["vocab"]), "content": "Ünïcode Word", "lstrip": False, "normalized": True, "special": False})
    return {"uncased": json.loads(uncased.to_str()), "cased": json.loads(cased.to_str()), "sequence": sequence, "gpt2": json.loads(gpt2.to_str()), "roberta": roberta}


def strings(corpus, r):
    assigned = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]
    marks = [c for c in assigned if unicodedata.category(chr(c)) in ("Mn", "Mc", "Me")]
    cjk = list(range(0x4E00, 0xA000)) + list(range(0x3400, 0x4DC0)) + list(range(0x3040, 0x3100)) + list(range(0xAC00, 0xD7A4)) + list(range(0x20000, 0x20100))
    rtl = list(range(0x5D0, 0x5EB)) + list(range(0x620, 0x670)) + [0x200E, 0x200F, 0x202A, 0x202B, 0x202C, 0x2066, 0x2067, 0x2069, 0x20]
    controls = list(range(0x20)) + list(range(0x7F, 0xA1)) + [0xAD, 0x1680, 0x2000, 0x200B, 0x200D, 0x2028, 0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF, 0xFFFD, 0xE000, 0xFFFF, 0x10FFFF]
    emoji = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "🇯🇵", "1️⃣", "❤️", "☎", "🧑🏿‍🚀", "🫠", "©", "™"]
    special = BERT + ROBERTA + ["<mask>", "<|endoftext|>", "<|Both|>", "<|both|>", "Ünïcode Word", "ünicode word", "unicode word", "[mask]", "[ MASK ]", "<", "[", "##a"]
    letters = "abcdefghijklmnopqrstuvwxyzABCXYZäöüßéÀİıſKÅŒǅσςΣ"
    ends = ["'s", "'S", "'re", "'ll", "'VE", "'m", "'t", "'d", "’s", "''", "' s"]

    def some(pool, low, high):
        return "".join(chr(c) for c in r.choices(pool, k=r.randint(low, high)))

    yield from ["", " ", "  ", "\n", "\t a", "a", " a ", "İ", "ß", "\u0301", "e\u0301", "\u1100\u1161\u11a8", "ﬁ", "Ǆ", "\U0001d400", "Ⅷ", "½", "٣", "a\u0300\u0315", "\x00"]
    yield from r.sample(corpus, 330)
    for _ in range(80):
        yield " ".join("".join(r.choices(emoji, k=r.randint(1, 4))) for _ in range(r.randint(1, 5)))
    for _ in range(90):
        yield "".join(r.choice(letters + " ") + some(marks, 0, 5) for _ in range(r.randint(1, 15)))
    for _ in range(80):
        yield some(cjk, 1, 30) + r.choice(["", " GPU", "，。", "42"])
    for _ in range(60):
        yield some(rtl, 1, 40)
    for _ in range(90):
        yield "".join(r.choice(letters) + some(controls, 0, 3) for _ in range(r.randint(1, 20)))
    for n in [98, 99, 100, 101, 102, 103, 104, 105, 200, 999]:
        yield "a" * n
        yield "".join(r.choices(letters, k=n))
        yield "é" * n + " x"
    for _ in range(80):
        yield "".join(r.choice(["", " ", "  ", "x", "\n"]) + r.choice(special) for _ in range(r.randint(1, 6)))
    for _ in range(70):
        yield "".join(r.choice(["", " ", "   ", "\u00a0"]) + r.choice(["it", "IT", "x1", "3.14", "a_b", "..!", "$5", "é"]) + r.choice(ends) for _ in range(r.randint(1, 6)))
    for _ in range(70):
        yield some(assigned, 1, 40)


def runs(classes):
    """Joins neighbours of one class: [[last, class], …]."""
    out = []
    for c, k in classes:
        if out and out[-1][1] == k:
            out[-1][0] = c
        else:
            out.append([c, k])
    return out


def characters():
    """Returns the class of each character that Unicode 14 assigns, as the normalizer and pre-tokenizers see it."""
    none = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    clean = normalizers.BertNormalizer(**{**none, "clean_text": True})
    chinese = normalizers.BertNormalizer(**{**none, "handle_chinese_chars": True})
    accents = normalizers.BertNormalizer(**{**none, "strip_accents": True})
    bert, byte = pre_tokenizers.BertPreTokenizer(), pre_tokenizers.ByteLevel(add_prefix_space=False)
    for c in range(0x110000):
        s = chr(c)
        if unicodedata.category(s) in ("Cn", "Cs"):
            continue
        k = {"": "r", " ": "s", s: "="}[clean.normalize_str(s)]
        k += "c" if chinese.normalize_str(s) != s else "="
        k += "r" if accents.normalize_str(s) == "" else "="
        k += "=sp"[len(bert.pre_tokenize_str("a" + s + "a")) - 1]
        joined = [len(byte.pre_tokenize_str(x + s + x)) == 1 for x in "a1!"]
        yield c, k + ("lno"[joined.index(True)] if True in joined else "s")


def main():
    r = random.Random(1)
    corpus = list(translations())
    texts = list(strings(sorted(set(corpus)), r))
    assert len(texts) == 1000, len(texts)
    golden = {"strings": texts, "ids": {}, "characters": runs(characters())}
    for name, text in tokenizers(corpus).items():
        text = json.dumps(text, ensure_ascii=False)
        t = Tokenizer.from_str(text)
        t.no_padding()
        golden["ids"][name] = [t.encode(s).ids for s in texts]
        with gzip.GzipFile(f"{name}.json.gz", "wb", mtime=0) as f:
            f.write(text.encode())
    with gzip.GzipFile("golden.json.gz", "wb", mtime=0) as f:
        f.write(json.dumps(golden, separators=(",", ":")).encode())


main()
