# SPDX-License-Identifier: Apache-2.0
"""What scopes share: the recorder's library, and the variable that launches read.

``library`` is None in a process that is not recorded. ``gpuflight trace`` sets
CUDA_INJECTION64_PATH, and only then the library is opened. It is small and starts nothing: the
CUDA driver makes it load the recorder.
"""

import contextvars
import os

#: The id of the current scope of this task, as the 8 bytes that launches read.
current = contextvars.ContextVar("gpuflight_scope")
#: The value of ``current`` outside all scopes.
NONE = bytes(8)


def _open():
    path = os.environ.get("CUDA_INJECTION64_PATH", "")
    if os.path.basename(path) != "libgpuflight.so":
        return None
    # Only here: a process that is not recorded does not need them.
    import logging
    import sys

    from gpuflight import _binding

    log = logging.getLogger("gpuflight")
    try:
        return _binding.Library(path)
    except (OSError, AttributeError) as e:  # not there, or older than this package
        log.warning("gpuflight: no scopes: %s: install the package and libgpuflight.so of one version", e)
    except _binding.Unknown as e:
        log.warning("gpuflight: no scopes: %s in Python %s", e, sys.version.split()[0])
    return None


library = _open()
