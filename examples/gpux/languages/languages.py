# SPDX-License-Identifier: Apache-2.0
"""Trains the text classifier of this example, and writes languages.onnx, tokenizer.json and expected.json.

The model names the language of a text. It is trained on the translations of Django, whose license is
LICENSE.django. expected.json has texts that the training did not see, and the token ids and the
probabilities that the package tokenizers and JAX compute for them. The files were made with jax 0.10.2, onnx 1.23.2, tokenizers 0.23.3 and Django 5.2.19.
"""

import gettext
import json
import pathlib
import random
import re

import django
import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

jax.config.update("jax_default_matmul_precision", "highest")

LANGUAGES = "ar bg cs de el en es fa fi fr he hi hu id it ja ko nl pl pt ru sv th tr uk vi zh".split()
FOLDERS = {"zh": "zh_Hans"}
VOCABULARY, WIDTH, LENGTH = 4000, 8, 64


def translations(language):
    """Returns the texts of a language by their English text, without what the program fills in."""
    root, texts = pathlib.Path(django.__file__).parent, {}
    for path in sorted(root.glob(f"**/locale/{FOLDERS.get(language, language)}/LC_MESSAGES/django.mo")):
        with path.open("rb") as f:
            for key, text in gettext.GNUTranslations(f)._catalog.items():
                key = key[0] if isinstance(key, tuple) else key
                text = re.sub(r"%\(\w+\)\w|%\w|\{\w*\}|<[^>]+>|&\w+;", " ", text)
                text = " ".join(text.split())
                if key and len(re.findall(r"\w", text)) >= 4:
                    texts[key] = text
    return texts


def read():
    """Returns [(text, language)] for training, and for tests the texts of other keys."""
    by = {language: translations(language) for language in LANGUAGES if language != "en"}
    by["en"] = {k: " ".join(re.sub(r"%\(\w+\)\w|%\w|\{\w*\}|<[^>]+>|&\w+;", " ", k).split()) for k in by["de"]}
    known, held = [], []
    for number, language in enumerate(LANGUAGES):
        for key, text in sorted(by[language].items()):
            if language != "en" and text == by["en"].get(key):
                continue  # names, and what is not translated
            (held if random.Random(key).random() < 0.15 else known).append((text, number))
    return known, held


def make_tokenizer(texts):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    t.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=VOCABULARY, limit_alphabet=800, special_tokens=special, show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.enable_padding(pad_id=0, pad_token="[PAD]")
    t.enable_truncation(LENGTH)
    return t


def forward(p, ids, mask):
    """Returns the probability of each language: a linear layer on the mean of the embeddings."""
    mask = mask[:, :, None].astype(jnp.float32)
    mean = (p["embedding"][ids] * mask).sum(1) / mask.sum(1)
    return jax.nn.softmax(mean @ p["weight"] + p["bias"])


def encode(t, texts):
    rows = t.encode_batch(texts)
    return np.array([r.ids for r in rows]), np.array([r.attention_mask for r in rows])


def part(r, text):
    """Returns some words of a text in a row, or some characters of one without spaces."""
    words = text.split()
    if len(words) < 3:
        n = r.randint(3, max(3, len(text)))
        start = r.randint(0, len(text) - min(n, len(text)))
        return text[start : start + n] if r.random() < 0.5 else text
    n = r.randint(2, len(words))
    start = r.randint(0, len(words) - n)
    return " ".join(words[start : start + n])


def train(t, known):
    r, n = random.Random(1), np.random.default_rng(1)
    p = {
        "embedding": n.normal(0, 0.3, (t.get_vocab_size(), WIDTH)),
        "weight": n.normal(0, 0.3, (WIDTH, len(LANGUAGES))), "bias": np.zeros(len(LANGUAGES)),
    }
    p = {k: jnp.asarray(v, jnp.float32) for k, v in p.items()}

    def loss(p, ids, mask, y):
        return -jnp.mean(jnp.log(jnp.take_along_axis(forward(p, ids, mask), y[:, None], 1) + 1e-9)) + 1e-4 * jnp.mean(p["embedding"] ** 2)

    @jax.jit
    def step(p, m, v, t, rate, ids, mask, y):  # Adam
        g = jax.grad(loss)(p, ids, mask, y)
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        p = jax.tree.map(lambda w, a, b: w - rate * (a / (1 - 0.9**t)) / (jnp.sqrt(b / (1 - 0.999**t)) + 1e-8), p, m, v)
        return p, m, v

    t.enable_padding(length=LENGTH, pad_id=0, pad_token="[PAD]")
    m = v = jax.tree.map(jnp.zeros_like, p)
    epochs, count = 25, 0
    for epoch in range(epochs):
        r.shuffle(known)
        ids, mask = encode(t, [part(r, text) for text, _ in known])
        y = np.array([language for _, language in known])
        rate = 1e-2 * (1 - epoch / epochs)
        for i in range(0, len(y) - 255, 256):
            count += 1
            p, m, v = step(p, m, v, count, rate, ids[i : i + 256], mask[i : i + 256], y[i : i + 256])
    t.enable_padding(pad_id=0, pad_token="[PAD]")
    return p


def export(p, path):
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in p.items()]
    weights += [numpy_helper.from_array(np.array([1]), "one"), numpy_helper.from_array(np.array([2]), "two")]
    weights.append(helper.make_tensor("names", TensorProto.STRING, [len(LANGUAGES)], [s.encode() for s in LANGUAGES]))
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["vectors"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "two"], ["mask3"]),
        helper.make_node("Mul", ["vectors", "mask3"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "one"], ["tokens"]),
        helper.make_node("Div", ["sum", "tokens"], ["mean"]),
        helper.make_node("Gemm", ["mean", "weight", "bias"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probability"]),
        helper.make_node("ArgMax", ["logits"], ["class"], axis=1, keepdims=0),
        helper.make_node("Gather", ["names", "class"], ["language"]),
    ]
    graph = helper.make_graph(
        nodes, "languages",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"]) for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info("language", TensorProto.STRING, ["batch"]),
         helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["batch", len(LANGUAGES)])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="languages.py")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def main():
    known, held = read()
    t = make_tokenizer([text for text, _ in known])
    p = train(t, known)
    texts, y = [text for text, _ in held], np.array([language for _, language in held])
    got = np.asarray(forward(p, *encode(t, texts)))
    print(f"{len(known)} texts, {len(LANGUAGES)} languages; accuracy on {len(held)} unseen texts: {np.mean(got.argmax(1) == y):.3f}")
    for i, language in enumerate(LANGUAGES):
        print(language, f"{np.mean(got.argmax(1)[y == i] == i):.2f}", end=" ")
    print()
    for text in ["Where is the nearest station?", "Wo ist der nächste Bahnhof?", "Où est la gare ?", "¿Dónde está la estación?", "Где вокзал?", "駅はどこですか", "Dov'è la stazione?", "which kernel was slow"]:
        q = np.asarray(forward(p, *encode(t, [text])))[0]
        print(text, LANGUAGES[q.argmax()], q.max())
    export(p, "languages.onnx")
    t.save("tokenizer.json", pretty=False)
    texts = random.Random(3).sample(texts, 38) + ["", "?"]
    rows, probability = t.encode_batch(texts), np.asarray(forward(p, *encode(t, texts)))
    t.no_padding()
    with open("expected.json", "w") as f:
        json.dump({
            "text": texts, "ids": [t.encode(s).ids for s in texts], "language": [LANGUAGES[i] for i in probability.argmax(1)],
            "probability": np.round(probability.astype(float), 7).tolist(),
        }, f, ensure_ascii=False)
        f.write("\n")


main()
