// SPDX-License-Identifier: AGPL-3.0-only
//! Which calls have begun and not been answered, so that `flush` and `close` can wait for them.
//!
//! Calls that began between two flushes share a channel on which nothing is sent: each has the
//! sender, and its loss by the last of them is the news. So a call costs a count up and down.

use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::connection::locked;
use crate::error::{Error, Result};

/// A call that has begun; its end is the end of this.
pub(crate) struct Promise(#[allow(dead_code)] Arc<watch::Sender<()>>);

/// The calls of one client.
pub(crate) struct Promises(Mutex<State>);

struct State {
    // None once no more calls are accepted.
    current: Option<Arc<watch::Sender<()>>>,
    // Of calls that began before: those that may not be over yet.
    earlier: Vec<watch::Receiver<()>>,
}

impl Default for Promises {
    fn default() -> Self {
        Self(Mutex::new(State { current: Some(Arc::default()), earlier: Vec::new() }))
    }
}

impl Promises {
    /// Fails when the client is closed.
    pub(crate) fn give(&self) -> Result<Promise> {
        let current = locked(&self.0).current.clone();
        current.map(Promise).ok_or_else(Error::client_closed)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        locked(&self.0).current.as_ref().map(|_| ()).ok_or_else(Error::client_closed)
    }

    /// Accepts no more of them.
    pub(crate) fn close(&self) {
        locked(&self.0).part(None);
    }

    /// Waits until those are over that have begun by now.
    pub(crate) async fn kept(&self) {
        let earlier = {
            let mut state = locked(&self.0);
            if state.current.is_some() {
                state.part(Some(Arc::default()));
            }
            state.earlier.retain(|calls| calls.has_changed().is_ok());
            state.earlier.clone()
        };
        for mut calls in earlier {
            let _ = calls.changed().await;
        }
    }
}

impl State {
    fn part(&mut self, next: Option<Arc<watch::Sender<()>>>) {
        if let Some(calls) = std::mem::replace(&mut self.current, next) {
            self.earlier.push(calls.subscribe());
        }
    }
}
