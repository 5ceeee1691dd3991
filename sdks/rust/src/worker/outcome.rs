// SPDX-License-Identifier: AGPL-3.0-only
//! How the handling of messages ends: what a handler may say, what that means for the queue, and
//! how others hear of it.

use std::fmt;
use std::time::Duration;

use crate::connection::chain;
use crate::error::Error;
use crate::message::{Message, Nack};

// What OpenTelemetry calls an error that nobody can name.
const UNNAMED: &str = "_OTHER";

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a handler returns if it did not succeed. `?` makes [`Failed`](Self::Failed) of any error,
/// and of a text.
#[derive(Debug)]
pub enum HandlerError {
    /// Not now: the message comes back after `retry_after`, and no attempt is counted.
    Backpressure {
        /// How long it has to wait.
        retry_after: Duration,
        /// Until then this throttle key lets nothing through, for anybody.
        throttle_key: Option<String>,
        /// For people.
        reason: Option<String>,
    },
    /// Trying again would not help: the message becomes a dead letter at once.
    DeadLetter {
        /// What is wrong with it.
        reason: String,
    },
    /// The message is retried or dead-lettered, as its queue has it.
    Failed(BoxError),
}

impl HandlerError {
    /// [`Backpressure`](Self::Backpressure) without a throttle key.
    #[must_use]
    pub fn backpressure(retry_after: Duration) -> Self {
        Self::Backpressure { retry_after, throttle_key: None, reason: None }
    }

    /// [`DeadLetter`](Self::DeadLetter), for this reason.
    pub fn dead_letter(reason: impl Into<String>) -> Self {
        Self::DeadLetter { reason: reason.into() }
    }
}

// Not an error itself: otherwise it could not be made of every other one.
impl<E: Into<BoxError>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backpressure { reason: Some(reason), .. } | Self::DeadLetter { reason } => {
                out.write_str(reason)
            }
            Self::Backpressure { retry_after, .. } => write!(out, "put off for {retry_after:?}"),
            Self::Failed(error) => out.write_str(&chain(&**error)),
        }
    }
}

/// What became of a message; [`WorkerEvent::kind`] says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// It was handled.
    Acked,
    /// Its handler failed.
    Nacked,
    /// Its handler asked for [`DeadLetter`](HandlerError::DeadLetter).
    DeadLettered,
    /// Its handler asked for [`Backpressure`](HandlerError::Backpressure).
    PutOff,
    /// Its handler was cut off by the end of the worker's grace.
    GivenBack,
    /// Its handler took longer than it may. [`Nacked`](Self::Nacked) follows.
    TimedOut,
    /// The broker could not be told about it: it comes back when its lease ends.
    SettleFailed,
}

impl EventKind {
    /// The kind in words that stay the same in every SDK, `dead_lettered` for example.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Nacked => "nacked",
            Self::DeadLettered => "dead_lettered",
            Self::PutOff => "put_off",
            Self::GivenBack => "given_back",
            Self::TimedOut => "timed_out",
            Self::SettleFailed => "settle_failed",
        }
    }
}

/// Something that happened to a message in a [`Worker`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkerEvent<'a> {
    /// What it was.
    pub kind: EventKind,
    /// The message; a batch has one event for each of its messages.
    pub message: &'a Message,
    /// How long it was handled.
    pub took: Duration,
    /// What the handler said, or the broker; none where all went well.
    pub error: Option<&'a str>,
}

/// How a handling ended.
pub(super) enum Outcome {
    Done,
    Error(HandlerError),
    Panicked(String),
    TimedOut(Duration),
    Cut,
}

impl Outcome {
    /// What went wrong, for a span. The type of a handler's own error is not known any more.
    pub(super) fn error_type(&self) -> &'static str {
        match self {
            Self::Error(HandlerError::Backpressure { .. }) => "backpressure",
            Self::Error(HandlerError::DeadLetter { .. }) => "dead_letter",
            Self::Error(HandlerError::Failed(error)) => {
                error.downcast_ref::<Error>().map_or(UNNAMED, |error| error.kind().as_str())
            }
            Self::Panicked(_) => "panic",
            Self::TimedOut(_) => "timeout",
            // Neither is a failure, so no span has it.
            Self::Done | Self::Cut => UNNAMED,
        }
    }

    /// What it means for a message: an ack, or this nack.
    pub(super) fn rule(self, error: String) -> (EventKind, Option<Nack>) {
        let failed = Nack { error, ..Nack::default() };
        match self {
            Self::Done => (EventKind::Acked, None),
            Self::Error(HandlerError::Backpressure { retry_after, throttle_key, .. }) => {
                let nack = Nack { retry_after: Some(retry_after), throttle_key, ..failed };
                (EventKind::PutOff, Some(nack))
            }
            Self::Error(HandlerError::DeadLetter { .. }) => {
                (EventKind::DeadLettered, Some(Nack { dead_letter: true, ..failed }))
            }
            Self::Error(HandlerError::Failed(_)) | Self::Panicked(_) | Self::TimedOut(_) => {
                (EventKind::Nacked, Some(failed))
            }
            Self::Cut => {
                let nack = Nack { retry_after: Some(Duration::ZERO), ..Nack::default() };
                (EventKind::GivenBack, Some(nack))
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => out.write_str("done"),
            Self::Error(error) => error.fmt(out),
            Self::Panicked(text) => write!(out, "handler panicked: {text}"),
            Self::TimedOut(limit) => {
                write!(out, "handler timed out after {} s", limit.as_secs_f64())
            }
            Self::Cut => out.write_str("the worker was stopped"),
        }
    }
}
