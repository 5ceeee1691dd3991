// SPDX-License-Identifier: AGPL-3.0-only
//! Messages of a consumer in lists, of what is there: nothing lingers.

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::{Arrival, Consumer};
use crate::error::Result;
use crate::message::ConsumeMessage;

/// The messages of a [`Consumer`] in lists: a [`Stream`], or [`next`](Self::next) by
/// [`next`](Self::next). Made by [`Consumer::batches`].
pub struct Batches<'a> {
    consumer: &'a Consumer,
    max: NonZeroUsize,
    arrival: Arrival,
}

impl Consumer {
    /// The messages in lists: all that are there, at least one, and at most `max`. For work that
    /// is cheaper together.
    ///
    /// # Panics
    ///
    /// When `max` is 0.
    #[must_use]
    pub fn batches(&self, max: usize) -> Batches<'_> {
        let max = NonZeroUsize::new(max).expect("max of batches must be positive, got 0");
        Batches { consumer: self, max, arrival: Arrival::default() }
    }
}

impl Batches<'_> {
    /// The next messages; `None` after an error or once the client was closed. Dropping the future
    /// loses no message.
    pub async fn next(&self) -> Option<Result<Vec<ConsumeMessage>>> {
        let first = self.consumer.next().await?;
        Some(first.map(|first| self.filled(first)))
    }

    fn filled(&self, first: ConsumeMessage) -> Vec<ConsumeMessage> {
        // The end of the stream, if that is next, is found by the next call, too.
        let rest = std::iter::from_fn(|| self.consumer.next_unread());
        let rest = rest.map(|(message, _)| message);
        std::iter::once(first).chain(rest).take(self.max.get()).collect()
    }
}

impl Stream for Batches<'_> {
    type Item = Result<Vec<ConsumeMessage>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { consumer, arrival, .. } = &mut *self;
        let first = ready!(arrival.poll_next(consumer, context));
        Poll::Ready(first.map(|first| first.map(|first| self.filled(first))))
    }
}

impl std::fmt::Debug for Batches<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Batches")
            .field("consumer", self.consumer)
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}
