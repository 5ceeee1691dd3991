# SPDX-License-Identifier: AGPL-3.0-only
"""What a change replaced, for whoever keeps a record of changes.

Only the owner of the state knows it: between a question and a change of somebody else's there may
always be another change.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Change(NamedTuple):
    """The answer to a request that replaced something: the response, and both values.

    A value is a queue's or a key's settings, runtime settings by name, or a few words; None where
    there was nothing before, or is nothing now. They hold scripts and settings as they are, so
    they are not for everybody's eyes.
    """

    response: Any
    before: Any
    after: Any
