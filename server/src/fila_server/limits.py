# SPDX-License-Identifier: AGPL-3.0-only
"""Every bound that is not a setting, once, with the reason for it.

`config.py` has the bounds that an operator may move, and takes the ends of their ranges from here.
Bounds that only one module could break (a cache, a slice of work) stay with that module. This
module holds plain numbers and imports nothing, so every other one may use it.
"""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 3600 * SECOND_MS
DAY_MS = 24 * HOUR_MS
YEAR_MS = 365 * DAY_MS

# --- Shares and limits ----------------------------------------------------------------------------

# A lone message waits for up to quantum x weight of every other key: 1000 to 1 is contrast enough.
MAX_WEIGHT = 1000
MAX_QUANTUM = 1000
# Tokens per second. A token in 12 days at the least, slower is what delays are for; a token per
# nanosecond at the most, which is the clock's own grain.
MIN_RATE = 1e-6
MAX_RATE = 1e9
# A bucket that holds less than one token never lets anything through.
MIN_BURST = 1.0
MAX_BURST = 1e9
# Tokens that one message takes. A bucket holds a thousand times as many at the most.
MAX_THROTTLE_COST = 1_000_000
# Leased messages with one throttle key: more than a broker could ever hold.
MAX_CONCURRENCY = 1 << 31
# Throttle keys of one message, and the bytes of one key: the ends of what an operator may allow.
MAX_THROTTLE_KEYS = 256
MAX_KEY_BYTES = 4 * KIB

# --- Times ----------------------------------------------------------------------------------------

# SQS's maximum. A worker that holds a message for half a day has lost it.
MAX_VISIBILITY_MS = 12 * HOUR_MS
# Longer waits belong into a scheduler; the same bound keeps a slip of the pen recoverable.
MAX_RETRY_DELAY_MS = 30 * DAY_MS
# Where a queue does not say how far doubling may go.
DEFAULT_RETRY_DELAY_MAX_MS = HOUR_MS
# A time in nanoseconds from now still fits 63 bits until the year 2162.
MAX_TTL_MS = 100 * YEAR_MS
MAX_DELAY_MS = 100 * YEAR_MS
# Every key in the window is a record on disk. SQS remembers for five minutes, Stripe for a day.
MAX_IDEMPOTENCY_WINDOW_MS = 30 * DAY_MS
DEFAULT_IDEMPOTENCY_WINDOW_MS = DAY_MS
# Wall times are stored as nanoseconds in 63 bits: until the year 2262.
MAX_WALL_NS = (1 << 63) - 1

# --- Failures -------------------------------------------------------------------------------------

# A counter that nobody reaches, yet one that is not "for ever" by mistake.
MAX_ATTEMPTS = 1_000_000
# What a message keeps of its past: enough to see a pattern, little enough to keep with each one.
FAILURES_KEPT = 5
FAILURE_ERROR_BYTES = 256

# --- Hooks ----------------------------------------------------------------------------------------

# Compiling is quadratic for some texts and nothing can interrupt it: 40 ms at this size.
MAX_SCRIPT_BYTES = 32 * KIB
# The most that an operator may let a hook hold the only thread; no queue can ask for more than
# `lua.max_timeout_ms`, which is far below.
MAX_HOOK_TIMEOUT_MS = 10 * SECOND_MS
# Less does not hold the standard library; more is no longer a decision about one message.
MIN_HOOK_MEMORY_BYTES = 64 * KIB
MAX_HOOK_MEMORY_BYTES = 64 * MIB

# --- Answers --------------------------------------------------------------------------------------

# Messages of one peek: a screenful unless told, and no more than a person pages through.
DEFAULT_PEEK = 10
MAX_PEEK = 1000
# Settings that one request changes together: they take effect at once, in one turn.
MAX_CHANGES = 1000
# What GetStatus lists; more is not read by anybody.
MAX_TROUBLES = 100
# Fairness keys, and throttle keys, of one answer about a queue.
DEFAULT_STATS_KEYS = 100
# Throttle keys of one list.
DEFAULT_THROTTLES = 1000

# --- Access ---------------------------------------------------------------------------------------

# A key per tenant and service of a large installation; all are kept in memory.
MAX_API_KEYS = 10_000
MAX_API_KEY_NAME = 100
# Beyond this a pattern is the better tool.
MAX_ACL_PERMISSIONS = 100

# --- Messages on the wire -------------------------------------------------------------------------

# gRPC's receive limit in every language unless a client raises it.
GRPC_MESSAGE_BYTES = 4 * MIB
# What the SDKs of this repository accept.
SDK_MESSAGE_BYTES = 64 * MIB

# --- Calls ----------------------------------------------------------------------------------------

# Of one connection at a time. Opening and resetting streams as fast as it can, a peer of grpcio
# holds up the others for seconds with 2000 and for milliseconds with 1000.
CONCURRENT_STREAMS = 1000
# A request that begins a stream: a queue's name and a few numbers, and room for fields of a newer
# contract.
STREAM_REQUEST_BYTES = 4096
# Sixteen megabytes at two megabits a second. A body that stops halfway must not hold its place for
# ever.
ARRIVAL_MS = 60_000
# Requests of one pipeline under way. A client's two batches of a kind and whoever sends on its own
# find room; a client that never reads its answers holds no more than these.
PIPELINE_REQUESTS_MAX = 16
# Peeks under way, each of which puts together an answer of a frame's size at most.
PEEKS_MAX = 8
# Answers that nobody has read yet, of all connections: as many as seventy of the largest, which is
# more than callers that read have on their way to them.
UNREAD_BYTES = 256 * MIB
# Anybody may watch the health without a key, and every watch is a call that stays.
WATCHES_MAX = 1000
# A tool needs one stream for a moment, and asks for a name.
REFLECTION_STREAMS_MAX = 100
REFLECTION_REQUEST_BYTES = 4096
