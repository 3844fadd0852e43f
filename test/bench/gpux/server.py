# SPDX-License-Identifier: Apache-2.0
"""The Python server that the benchmark compares with: FastAPI, uvicorn and ONNX Runtime.

    server.py MODEL.onnx PORT

It answers POST /predict as gpux does: an object of lists in JSON gives an object of lists.
"""
import sys

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, HTTPException

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
inputs = {i.name: types[i.type] for i in session.get_inputs()}
outputs = [o.name for o in session.get_outputs()]
app = FastAPI()


@app.post("/predict")
async def predict(data: dict):
    try:
        values = {name: np.array(data[name], dtype=kind) for name, kind in inputs.items()}
        results = session.run(outputs, values)
    except Exception as e:
        raise HTTPException(status_code=400, detail=f"Inference failed: {e}") from e
    return {name: value.tolist() for name, value in zip(outputs, results)}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
