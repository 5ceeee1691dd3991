# SPDX-License-Identifier: AGPL-3.0-only
"""The conformance suite's runner: cases as data, one driver per SDK, one verdict per case.

`python -m fila_conformance` runs it. It knows the contract (`fila.v1`) and the driver protocol, and
no SDK.
"""

import os

# gRPC reports every connection that a case breaks on purpose. It looks when it is imported, and
# drivers inherit it.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
