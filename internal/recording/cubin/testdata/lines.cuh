// SPDX-License-Identifier: Apache-2.0

__device__ inline float reciprocal(float x) {
  return rsqrtf(x) + 1.0f; // line: reciprocal
}

__device__ inline float squared(float x) {
  float y = reciprocal(x); // line: first
  return y * reciprocal(y); // line: second
}
