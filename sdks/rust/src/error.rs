// SPDX-License-Identifier: AGPL-3.0-only
//! What can go wrong, as one error type with a kind for each reason of the contract.
//!
//! A kind is chosen by the broker's reason, then by the gRPC status, never by text. This module
//! knows the contract's names; which status a failed connection is, `connection` decides.

use std::fmt;
use std::sync::Arc;

use crate::BoxError;
use crate::proto;

/// What every call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Arc<dyn std::error::Error + Send + Sync>;

macro_rules! kinds {
    ($($kind:ident $name:literal $text:literal,)*) => {
        /// What an [`Error`] is about; [`Error::kind`] says it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $(#[doc = $text] $kind,)*
        }

        impl ErrorKind {
            /// The kind in words that stay the same in every SDK, `queue_not_found` for example.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            // What an error says where the broker said nothing.
            const fn text(self) -> &'static str {
                match self { $(Self::$kind => $text,)* }
            }
        }
    };
}

kinds! {
    QueueNotFound "queue_not_found" "the queue does not exist",
    MessageNotFound "message_not_found" "the queue holds no such message, or it is not leased",
    LeaseExpired "lease_expired" "the lease token is not that of the message's current delivery",
    QueueAlreadyExists "queue_already_exists" "the queue exists already",
    InvalidArgument "invalid_argument" "a field or an option is missing, malformed or out of range",
    InvalidScript "invalid_script" "the Lua source does not compile or defines no hook",
    NotADeadLetterQueue "not_a_dead_letter_queue" "the queue is not a dead-letter queue",
    ParentQueueNotFound "parent_queue_not_found" "the queue of the dead letters no longer exists",
    MessageTooLarge "message_too_large" "payload, headers or request exceed a limit",
    Overloaded "overloaded" "the broker has more work waiting than it accepts",
    QueueFull "queue_full" "the queue holds as many messages as it may",
    DiskFull "disk_full" "the broker's data volume is nearly full",
    ShuttingDown "shutting_down" "the broker is going away; nothing was done",
    Unauthenticated "unauthenticated" "no API key, or not a valid one",
    PermissionDenied "permission_denied" "the API key may not do this",
    StorageFailed "storage_failed" "the broker's store failed; the outcome is unknown",
    HookFailed "hook_failed" "the queue's on_enqueue hook failed and its policy is to reject",
    ConfigNotFound "config_not_found" "no runtime configuration entry has that key",
    MessageLeased "message_leased" "the message is leased",
    ApiKeyNotFound "api_key_not_found" "no API key has that id",
    Internal "internal" "the broker failed",
    ResourceExhausted "resource_exhausted" "a limit of the broker or of this client is reached",
    Unavailable "unavailable" "the broker cannot be reached",
    DeadlineExceeded "deadline_exceeded" "no answer came in time; the outcome is unknown",
    Cancelled "cancelled" "the call was cancelled; the outcome is unknown",
    Unimplemented "unimplemented" "the broker does not know this call",
    ClientClosed "client_closed" "the client is closed",
}

use ErrorKind::{
    ApiKeyNotFound, Cancelled, ClientClosed, ConfigNotFound, DeadlineExceeded, DiskFull,
    HookFailed, Internal, InvalidArgument, InvalidScript, LeaseExpired, MessageLeased,
    MessageNotFound, MessageTooLarge, NotADeadLetterQueue, Overloaded, ParentQueueNotFound,
    PermissionDenied, QueueAlreadyExists, QueueFull, QueueNotFound, ResourceExhausted,
    ShuttingDown, StorageFailed, Unauthenticated, Unavailable, Unimplemented,
};

// The reasons of the contract: the kind, and the status that the broker sends with it. Items of a
// batch carry a reason alone, so the status of an item's error comes from here.
const REASONS: [(&str, ErrorKind, &str); 21] = [
    ("QUEUE_NOT_FOUND", QueueNotFound, "NOT_FOUND"),
    ("MESSAGE_NOT_FOUND", MessageNotFound, "NOT_FOUND"),
    ("LEASE_EXPIRED", LeaseExpired, "FAILED_PRECONDITION"),
    ("QUEUE_ALREADY_EXISTS", QueueAlreadyExists, "ALREADY_EXISTS"),
    ("INVALID_ARGUMENT", InvalidArgument, "INVALID_ARGUMENT"),
    ("INVALID_SCRIPT", InvalidScript, "INVALID_ARGUMENT"),
    ("NOT_A_DEAD_LETTER_QUEUE", NotADeadLetterQueue, "INVALID_ARGUMENT"),
    ("PARENT_QUEUE_NOT_FOUND", ParentQueueNotFound, "FAILED_PRECONDITION"),
    ("MESSAGE_TOO_LARGE", MessageTooLarge, "INVALID_ARGUMENT"),
    ("OVERLOADED", Overloaded, "RESOURCE_EXHAUSTED"),
    ("QUEUE_FULL", QueueFull, "RESOURCE_EXHAUSTED"),
    ("DISK_FULL", DiskFull, "RESOURCE_EXHAUSTED"),
    ("SHUTTING_DOWN", ShuttingDown, "UNAVAILABLE"),
    ("UNAUTHENTICATED", Unauthenticated, "UNAUTHENTICATED"),
    ("PERMISSION_DENIED", PermissionDenied, "PERMISSION_DENIED"),
    ("STORAGE_FAILED", StorageFailed, "INTERNAL"),
    ("HOOK_FAILED", HookFailed, "FAILED_PRECONDITION"),
    ("CONFIG_NOT_FOUND", ConfigNotFound, "NOT_FOUND"),
    ("MESSAGE_LEASED", MessageLeased, "FAILED_PRECONDITION"),
    ("API_KEY_NOT_FOUND", ApiKeyNotFound, "NOT_FOUND"),
    ("INTERNAL", Internal, "INTERNAL"),
];

// Statuses that come without a reason: from gRPC itself, a proxy, or a broker newer than the table
// above. Everything that is not listed is Internal.
const STATUSES: [(&str, ErrorKind); 9] = [
    ("ALREADY_EXISTS", QueueAlreadyExists),
    ("CANCELLED", Cancelled),
    ("DEADLINE_EXCEEDED", DeadlineExceeded),
    ("INVALID_ARGUMENT", InvalidArgument),
    ("PERMISSION_DENIED", PermissionDenied),
    ("RESOURCE_EXHAUSTED", ResourceExhausted),
    ("UNAUTHENTICATED", Unauthenticated),
    ("UNAVAILABLE", Unavailable),
    ("UNIMPLEMENTED", Unimplemented),
];

const REASON_PREFIX: &str = "ERROR_REASON_";

/// Why a call failed. [`kind`](Error::kind) is what to match on; the text is for people.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    code: Option<&'static str>,
    reason: Option<String>,
    queue: Option<String>,
    message_id: Option<String>,
    source: Option<Source>,
}

impl Error {
    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What the broker said, or this client.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The gRPC status by name, `NOT_FOUND` for example; none where this client refused the call.
    #[must_use]
    pub fn code(&self) -> Option<&'static str> {
        self.0.code
    }

    /// The broker's reason by name, `QUEUE_NOT_FOUND` for example; none where it gave none.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.0.reason.as_deref()
    }

    /// The queue that the call named.
    #[must_use]
    pub fn queue(&self) -> Option<&str> {
        self.0.queue.as_deref()
    }

    /// The message that the call named.
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        self.0.message_id.as_deref()
    }

    /// Whether the same call may succeed later. It does not promise that the first one did nothing:
    /// repeating an enqueue that may have been stored needs an idempotency key.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ResourceExhausted | Overloaded | QueueFull | DiskFull | DeadlineExceeded
        ) || self.is_unavailable()
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self.0.kind, Unavailable | ShuttingDown)
    }

    fn new(kind: ErrorKind, message: &str) -> Self {
        let message = if message.is_empty() { kind.text() } else { message }.to_owned();
        let (code, reason, queue, message_id, source) = (None, None, None, None, None);
        Self(Box::new(Inner { kind, message, code, reason, queue, message_id, source }))
    }

    /// The error of a whole call: by its reason if that is known, else by its status.
    pub(crate) fn from_status(
        code: &'static str,
        reason: Option<String>,
        message: &str,
        source: Option<Source>,
    ) -> Self {
        let by_reason = reason.as_deref().and_then(|reason| {
            REASONS.iter().find(|(name, ..)| *name == reason).map(|(_, kind, _)| *kind)
        });
        let by_status =
            || STATUSES.iter().find(|(name, _)| *name == code).map_or(Internal, |(_, kind)| *kind);
        let mut error = Self::new(by_reason.unwrap_or_else(by_status), message);
        error.0.code = Some(code);
        error.0.reason = reason;
        error.0.source = source;
        error
    }

    /// The error of one item of a batch; a reason that this SDK does not know is Internal.
    pub(crate) fn from_item(item: &proto::ItemError, message: &str) -> Self {
        let reason = match proto::ErrorReason::try_from(item.reason) {
            Ok(reason) => reason.as_str_name().trim_start_matches(REASON_PREFIX).to_owned(),
            Err(_) => item.reason.to_string(),
        };
        let (kind, code) = REASONS
            .iter()
            .find(|(name, ..)| *name == reason)
            .map_or((Internal, "INTERNAL"), |(_, kind, code)| (*kind, *code));
        let mut error = Self::new(kind, message);
        error.0.code = Some(code);
        error.0.reason = Some(reason);
        error
    }

    pub(crate) fn invalid(message: &str) -> Self {
        Self::new(InvalidArgument, message)
    }

    pub(crate) fn internal(message: &str) -> Self {
        Self::new(Internal, message)
    }

    pub(crate) fn cancelled(message: &str) -> Self {
        Self::new(Cancelled, message)
    }

    /// The function that gives API keys gave none.
    pub(crate) fn no_key(cause: BoxError) -> Self {
        let mut error = Self::new(Unauthenticated, &format!("api_key gave none: {cause}"));
        error.0.source = Some(cause.into());
        error
    }

    pub(crate) fn client_closed() -> Self {
        Self::new(ClientClosed, "")
    }

    pub(crate) fn too_late(message: &str) -> Self {
        Self::from_status("DEADLINE_EXCEEDED", None, message, None)
    }

    /// The same failure as the reason for something else that was not done.
    pub(crate) fn with_text(mut self, message: String) -> Self {
        self.0.message = message;
        self
    }

    /// Names what the call was about. What NOT_FOUND without a reason could not find is the most
    /// specific thing that the call named.
    pub(crate) fn about(mut self, queue: Option<&str>, message_id: Option<&str>) -> Self {
        let is_vague = self.0.code == Some("NOT_FOUND") && self.0.kind == Internal;
        if is_vague && message_id.is_some() {
            self.0.kind = MessageNotFound;
        } else if is_vague && queue.is_some() {
            self.0.kind = QueueNotFound;
        }
        self.0.queue = queue.map(str::to_owned);
        self.0.message_id = message_id.map(str::to_owned);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the source: it has the same text, and metadata that nobody reads.
        out.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("code", &self.0.code)
            .field("reason", &self.0.reason)
            .field("queue", &self.0.queue)
            .field("message_id", &self.0.message_id)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.source {
            Some(source) => Some(&**source),
            None => None,
        }
    }
}
