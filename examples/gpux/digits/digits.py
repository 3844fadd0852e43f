# SPDX-License-Identifier: Apache-2.0
"""Trains the CNN of this example on scikit-learn's digits, and writes digits.onnx, expected.json and two.png.

expected.json has 20 images that the training did not see, their digits, and the logits that JAX
computes for them, which the tests compare. two.png is the first of them, 8 times larger. The files were
made with jax 0.10, scikit-learn 1.9, onnx 1.23 and pillow 13.0.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits

jax.config.update("jax_default_matmul_precision", "highest")


def forward(p, x):
    """Returns the logits of images with the shape [n, 1, 8, 8] and values from 0 to 1."""
    for w, b in ((p["w1"], p["b1"]), (p["w2"], p["b2"])):
        x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        x = jax.nn.relu(x + b[None, :, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return x.reshape(x.shape[0], -1) @ p["w3"] + p["b3"]


def train(x, y):
    r = np.random.default_rng(1)
    p = {
        "w1": r.normal(0, 0.3, (8, 1, 3, 3)), "b1": np.zeros(8),
        "w2": r.normal(0, 0.15, (16, 8, 3, 3)), "b2": np.zeros(16),
        "w3": r.normal(0, 0.1, (64, 10)), "b3": np.zeros(10),
    }
    p = {k: jnp.asarray(v, jnp.float32) for k, v in p.items()}

    def loss(p, x, y):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(forward(p, x)), y[:, None], 1))

    @jax.jit
    def step(p, m, v, t, x, y):  # Adam
        g = jax.grad(loss)(p, x, y)
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        p = jax.tree.map(lambda w, a, b: w - 2e-3 * (a / (1 - 0.9**t)) / (jnp.sqrt(b / (1 - 0.999**t)) + 1e-8), p, m, v)
        return p, m, v

    m = v = jax.tree.map(jnp.zeros_like, p)
    t = 0
    for _ in range(40):
        order = r.permutation(len(x))
        for i in range(0, len(x) - 63, 64):
            t += 1
            batch = order[i : i + 64]
            p, m, v = step(p, m, v, t, x[batch], y[batch])
    return p


def export(p, path):
    weights = [numpy_helper.from_array(np.asarray(v), k) for k, v in p.items()]
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["m1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["m2"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["m2"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["digit"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10]),
         helper.make_tensor_value_info("digit", TensorProto.INT64, ["batch"])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="digits.py")
    model.ir_version = 8
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def main():
    data = load_digits()
    x = (data.images[:, None] / 16).astype(np.float32)
    y = data.target.astype(np.int32)
    order = np.random.default_rng(2).permutation(len(x))
    known, held = order[:1400], order[1400:]
    p = train(x[known], y[known])
    logits = np.asarray(forward(p, x[held]))
    print(f"accuracy on {len(held)} unseen images: {np.mean(logits.argmax(1) == y[held]):.3f}")
    export(p, "digits.onnx")
    some = held[:20]
    with open("expected.json", "w") as f:
        json.dump({"image": x[some].tolist(), "digit": y[some].tolist(), "logits": logits[:20].tolist()}, f)
        f.write("\n")
    Image.fromarray((data.images[some[0]] * 255 / 16).round().astype(np.uint8)).resize((64, 64), Image.Resampling.NEAREST).save("two.png")


main()
