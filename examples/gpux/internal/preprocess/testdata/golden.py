# SPDX-License-Identifier: Apache-2.0
"""Makes images.json.gz: PNG and JPEG files, and the tensors that Pillow and numpy make of them.

The file was made with

    pip install pillow==13.0.0 numpy==2.4.6
    python golden.py
"""

import base64
import gzip
import io
import json

import numpy as np
from PIL import Image

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def picture(width, height):
    """Returns waves, blocks with hard edges, and noise."""
    r = np.random.default_rng(width * height)
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(x / 7) + np.cos(y / 5), np.sin((x + y) / 9), np.cos(x / 3) * np.sin(y / 11)], -1)
    a = 128 + 50 * waves + r.normal(0, 8, (height, width, 3))
    a[height // 4 : height // 2, width // 3 : width // 2] = (255, 0, 0)
    a[height // 2 :, : width // 5] = (0, 0, 255)
    return Image.fromarray(np.clip(a, 0, 255).astype(np.uint8))


def encode(image, kind, **options):
    f = io.BytesIO()
    image.save(f, kind, **options)
    return f.getvalue()


def expected(data, resize, crop, normalize, channels):
    image = Image.open(io.BytesIO(data)).convert("RGB" if channels == 3 else "L")
    if resize:
        image = image.resize(resize, Image.Resampling.BILINEAR)
    if crop:
        left, top = (image.width - crop[0]) // 2, (image.height - crop[1]) // 2
        image = image.crop((left, top, left + crop[0], top + crop[1]))
    a = np.asarray(image, np.float64).reshape(image.height, image.width, channels) / 255
    if normalize:
        a = (a - np.array(normalize[0][:channels])) / np.array(normalize[1][:channels])
    return a


def main():
    big, small = picture(97, 61), picture(9, 13)
    alpha = big.copy()
    alpha.putalpha(Image.fromarray((np.arange(97 * 61) % 256).astype(np.uint8).reshape(61, 97)))
    cases = {
        "png": (encode(big, "png"), (32, 24), None, None, 3),
        "png, larger": (encode(small, "png"), (31, 40), None, IMAGENET, 3),
        "png, wider and lower": (encode(big, "png"), (130, 20), (64, 20), None, 3),
        "png, cropped to odd sizes": (encode(big, "png"), (40, 40), (27, 32), IMAGENET, 3),
        "png, not scaled": (encode(small, "png"), None, None, IMAGENET, 3),
        "png, gray of colours": (encode(big, "png"), (28, 28), None, ([0.5], [0.25]), 1),
        "png, gray": (encode(big.convert("L"), "png"), (28, 28), None, None, 1),
        "png, colours of gray": (encode(big.convert("L"), "png"), (28, 28), None, None, 3),
        "png, alpha": (encode(alpha, "png"), (32, 24), None, None, 3),
        "png, gray and alpha": (encode(alpha.convert("LA"), "png"), (32, 24), None, None, 1),
        "png, palette": (encode(big.quantize(32), "png"), (32, 24), None, None, 3),
        "png, palette and transparency": (encode(big.quantize(32), "png", transparency=3), (32, 24), None, None, 3),
        "png, bits": (encode(big.convert("1"), "png"), (32, 24), None, None, 1),
        "jpeg, full colours": (encode(big, "jpeg", quality=90, subsampling="4:4:4"), (32, 24), None, None, 3),
        "jpeg, half colours": (encode(big, "jpeg", quality=90, subsampling="4:2:0"), (32, 24), None, None, 3),
        "jpeg, progressive": (encode(big, "jpeg", quality=75, progressive=True), (32, 24), (24, 24), IMAGENET, 3),
        "jpeg, gray": (encode(big.convert("L"), "jpeg", quality=90), (28, 28), None, None, 1),
    }
    out = {}
    for name, (data, resize, crop, normalize, channels) in cases.items():
        out[name] = {
            "file": base64.b64encode(data).decode(), "resize": resize, "crop": crop, "channels": channels,
            "mean": normalize and normalize[0], "std": normalize and normalize[1],
            "hwc": np.round(expected(data, resize, crop, normalize, channels), 4).tolist(),
        }
    with gzip.GzipFile("images.json.gz", "wb", mtime=0) as f:
        f.write(json.dumps(out).encode())


main()
