# SPDX-License-Identifier: Apache-2.0
"""Names what a Python program does on the GPU, for ``gpuflight trace``.

    import gpuflight

    with gpuflight.scope("step"):
        train(batch)

    @gpuflight.scope("predict")
    async def predict(request): ...

Without ``gpuflight trace`` a scope does nothing. docs/python.md has the details.
"""

from gpuflight._scope import scope

__all__ = ["scope"]
