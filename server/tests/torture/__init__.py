# SPDX-License-Identifier: AGPL-3.0-only
"""Torture: a real broker in a process of its own under real faults, and figures of how it fared.

One module per kind of torture, each with a `run(scale)` that returns its figures and raises when
the broker breaks a rule. A time is only ever printed, never judged.
"""
