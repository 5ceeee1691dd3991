// SPDX-License-Identifier: AGPL-3.0-only
//! Leases of frames, and the keeper that prolongs them while something of a frame is held.
//!
//! The messages of a frame share a token and an end, so a frame is what has a record here: when its
//! lease ends, and which of its messages are held. A consumer holds what it has not handed out, a
//! worker also what is being handled. A client has one keeper. It prolongs all frames that are due
//! in one request, half a lease before they end, and leaves out what is not held: that is the
//! application's own, and a program that loses a message must not hide it from others.
//!
//! Times are this machine's, counted from a frame's arrival, or from the request that prolonged it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::batch::{BATCH_ITEMS_MAX, Extend, send_batch, send_many};
use crate::connection::{Connection, deadline_after, locked};
use crate::error::{Error, ErrorKind};
use crate::grants::Settle;
use crate::message::{as_ms, moment};
use crate::proto;
use crate::proto::grant_settlement::Action;
use crate::tracing::Trace;

// How soon an extension that got no answer is tried again; short leases have less time for that.
const RETRY_TIME: Duration = Duration::from_secs(1);
const RETRY_PART: u32 = 10;

/// Frames by the moment at which they are due; the number tells equal moments apart.
type Key = (Instant, u64);

/// The frames of one client whose leases are kept.
pub(crate) struct Leases {
    connection: Arc<Connection>,
    timeout: Duration,
    book: Mutex<Book>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Book {
    due: BTreeMap<Key, Weak<Frame>>,
    count: u64,
    has_keeper: bool,
}

/// What one frame leases, for as long as anybody has it.
pub(crate) struct Frame {
    queue: String,
    token: String,
    ids: Vec<String>,
    // None where the broker did not say: such a lease is not known to end.
    length: Option<Duration>,
    keeper: Option<Arc<Leases>>,
    state: Mutex<State>,
}

struct State {
    is_held: Vec<bool>,
    held: usize,
    ends_at: Option<Instant>,
    is_lost: bool,
    key: Option<Key>,
}

/// One message of a frame that is held until this is dropped.
pub(crate) struct Hold {
    frame: Arc<Frame>,
    place: usize,
}

impl Leases {
    pub(crate) fn new(connection: Arc<Connection>, timeout: Duration) -> Arc<Self> {
        let (book, changed) = (Mutex::default(), Arc::default());
        Arc::new(Self { connection, timeout, book, changed })
    }

    /// A record of a frame that arrives now, with all of its messages held.
    pub(crate) fn frame(
        self: &Arc<Self>,
        queue: &str,
        messages: &[proto::Message],
        is_kept: bool,
    ) -> Arc<Frame> {
        let now = Instant::now();
        let length = messages.first().and_then(length_of);
        let token = messages.first().and_then(|first| first.metadata.as_ref());
        let state = State {
            is_held: vec![true; messages.len()],
            held: messages.len(),
            ends_at: length.map(|length| now + length),
            is_lost: false,
            key: None,
        };
        let frame = Arc::new(Frame {
            queue: queue.to_owned(),
            token: token.map(|metadata| metadata.lease_token.clone()).unwrap_or_default(),
            ids: messages.iter().map(|message| message.id.clone()).collect(),
            length,
            keeper: is_kept.then(|| Arc::clone(self)),
            state: Mutex::new(state),
        });
        if let Some(length) = length {
            frame.come_back(now + length / 2);
        }
        frame
    }

    /// Writes down when a frame is due.
    fn write(self: &Arc<Self>, at: Instant, frame: &Arc<Frame>) -> Key {
        let mut book = locked(&self.book);
        book.count += 1;
        let key = (at, book.count);
        book.due.insert(key, Arc::downgrade(frame));
        let is_next = book.due.first_key_value().is_some_and(|(first, _)| *first == key);
        let has_keeper = std::mem::replace(&mut book.has_keeper, true);
        drop(book);
        if !has_keeper {
            let keeper = keep(Arc::downgrade(self), Arc::clone(&self.changed));
            self.connection.runtime.spawn(keeper);
        } else if is_next {
            self.changed.notify_one();
        }
        key
    }

    /// The frames that are due now, and when the next one is.
    fn due(&self) -> (Vec<Arc<Frame>>, Option<Instant>) {
        let now = Instant::now();
        let mut book = locked(&self.book);
        let mut due = Vec::new();
        while let Some(entry) = book.due.first_entry().filter(|entry| entry.key().0 <= now) {
            due.extend(entry.remove().upgrade());
        }
        (due, book.due.first_key_value().map(|((at, _), _)| *at))
    }

    /// Prolongs frames, each as one item of a request; a few requests if they do not fit into one.
    fn prolong(self: &Arc<Self>, frames: Vec<Arc<Frame>>) {
        let (mut requests, mut request, mut size) = (Vec::new(), Vec::new(), 0);
        for frame in frames {
            let Some(item) = frame.extension() else { continue };
            let weight = 1 + item.except_message_ids.len();
            if size + weight > BATCH_ITEMS_MAX && !request.is_empty() {
                requests.push(std::mem::take(&mut request));
                size = 0;
            }
            size += weight;
            request.push((frame, item));
        }
        requests.push(request);
        // Tasks of their own, so that a broker that takes its time does not hold up the others.
        for request in requests.into_iter().filter(|request| !request.is_empty()) {
            self.connection.runtime.spawn(Arc::clone(self).extend(request));
        }
    }

    async fn extend(self: Arc<Self>, request: Vec<(Arc<Frame>, proto::GrantSettlement)>) {
        let began = Instant::now();
        let (frames, items): (Vec<_>, Vec<_>) = request.into_iter().unzip();
        let first_end = frames.iter().filter_map(|frame| frame.ends_at()).min();
        let deadline = deadline_after(self.timeout);
        let deadline = first_end.map_or(deadline, |end| end.min(deadline));
        if !self.connection.has_grants() {
            return self.extend_each(&frames, began).await;
        }
        let trace = Trace::default();
        match send_batch::<Settle>(&self.connection, items, deadline, &trace).await {
            Ok(answers) => {
                for (frame, answer) in frames.iter().zip(answers) {
                    match answer {
                        Ok(_) => frame.renew(began),
                        Err(error) => frame.lose(&error),
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::Unimplemented => {
                self.connection.forget_grants();
                self.extend_each(&frames, began).await;
            }
            Err(error) => frames.iter().for_each(|frame| frame.try_again(&error)),
        }
    }

    /// Names each message, for a broker that knows no grants.
    async fn extend_each(&self, frames: &[Arc<Frame>], began: Instant) {
        for frame in frames {
            let held = frame.held();
            let item = |place: &usize| proto::LeaseExtension {
                queue: frame.queue.clone(),
                message_id: frame.ids[*place].clone(),
                lease_token: frame.token.clone(),
                extend_ms: frame.length.map_or(0, as_ms),
            };
            let items: Vec<_> = held.iter().map(item).collect();
            let remaining = frame.ends_at().map(|end| end.saturating_duration_since(began));
            let timeout = remaining.map_or(self.timeout, |remaining| remaining.min(self.timeout));
            let answers = send_many::<Extend>(&self.connection, items.into_iter(), timeout).await;
            let answers = match answers {
                Ok(answers) => answers,
                Err(error) => {
                    frame.try_again(&error);
                    continue;
                }
            };
            // What was settled meanwhile has no lease, and needs none.
            let failure = held.iter().zip(answers).find_map(|(place, answer)| match answer {
                Err(error) if frame.holds(*place) => Some(error),
                _ => None,
            });
            match failure {
                None => frame.renew(began),
                Some(error) if error.is_retryable() => frame.try_again(&error),
                Some(error) => frame.lose(&error),
            }
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // The keeper has nothing more to do, and may be asleep for a long time.
        self.changed.notify_one();
    }
}

/// Prolongs what is due, for as long as there is anything that could be.
async fn keep(leases: Weak<Leases>, changed: Arc<Notify>) {
    loop {
        let Some(next) = leases.upgrade().map(|leases| {
            let (due, next) = leases.due();
            leases.prolong(due);
            next
        }) else {
            return;
        };
        let pause = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            () = changed.notified() => {}
        }
    }
}

impl Frame {
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether messages of it may still be handed out.
    pub(crate) fn is_leased(&self) -> bool {
        let state = locked(&self.state);
        !state.is_lost && state.ends_at.is_none_or(|end| Instant::now() < end)
    }

    pub(crate) fn hold(self: &Arc<Self>, place: usize) -> Hold {
        Hold { frame: Arc::clone(self), place }
    }

    fn holds(&self, place: usize) -> bool {
        locked(&self.state).is_held[place]
    }

    fn held(&self) -> Vec<usize> {
        let state = locked(&self.state);
        (0..self.ids.len()).filter(|place| state.is_held[*place]).collect()
    }

    fn ends_at(&self) -> Option<Instant> {
        locked(&self.state).ends_at
    }

    fn let_go(&self, place: usize) {
        let mut state = locked(&self.state);
        if std::mem::replace(&mut state.is_held[place], false) {
            state.held -= 1;
        }
    }

    /// The item that prolongs what is held of it; none if nothing is, or if it is too late.
    fn extension(&self) -> Option<proto::GrantSettlement> {
        let state = locked(&self.state);
        let is_over = state.is_lost || state.ends_at.is_none_or(|end| end <= Instant::now());
        if state.held == 0 || is_over {
            return None;
        }
        let apart = self.ids.iter().zip(&state.is_held).filter(|(_, is_held)| !**is_held);
        let extend_ms = self.length.map_or(0, as_ms);
        Some(proto::GrantSettlement {
            queue: self.queue.clone(),
            lease_token: self.token.clone(),
            except_message_ids: apart.map(|(id, _)| id.clone()).collect(),
            expected_messages: 0,
            action: Some(Action::Extend(proto::GrantExtension { extend_ms })),
        })
    }

    /// A new lease, which counts from when the request for it was sent.
    fn renew(self: &Arc<Self>, began: Instant) {
        let Some(length) = self.length else { return };
        locked(&self.state).ends_at = Some(began + length);
        self.come_back(began + length / 2);
    }

    /// No answer, or none about this frame: that may be another one a little later.
    fn try_again(self: &Arc<Self>, error: &Error) {
        let (queue, is_closed) = (&self.queue, error.kind() == ErrorKind::ClientClosed);
        let Some(length) = self.length.filter(|_| !is_closed) else { return };
        tracing::debug!(queue, %error, "leases were not extended, trying again");
        let next = Instant::now() + RETRY_TIME.min(length / RETRY_PART);
        if self.ends_at().is_some_and(|end| next < end) {
            self.come_back(next);
        }
    }

    fn lose(&self, error: &Error) {
        let mut state = locked(&self.state);
        // Where all was settled in the meantime there is nothing to lose.
        if state.held > 0 {
            state.is_lost = true;
            let (queue, messages) = (&self.queue, state.held);
            tracing::debug!(queue, messages, %error, "leases cannot be extended");
        }
    }

    fn come_back(self: &Arc<Self>, at: Instant) {
        if let Some(keeper) = &self.keeper {
            let mut state = locked(&self.state);
            state.key = Some(keeper.write(at, self));
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        let key = locked(&self.state).key;
        if let (Some(keeper), Some(key)) = (&self.keeper, key) {
            locked(&keeper.book).due.remove(&key);
        }
    }
}

impl Hold {
    pub(crate) fn frame_size(&self) -> u64 {
        self.frame.ids.len() as u64
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.frame.let_go(self.place);
    }
}

/// How long a lease was when it began, by the broker's clock alone.
fn length_of(message: &proto::Message) -> Option<Duration> {
    let timestamps = message.timestamps.as_ref()?;
    let (from, to) = (moment(timestamps.leased_at)?, moment(timestamps.lease_expires_at)?);
    to.duration_since(from).ok().filter(|length| !length.is_zero())
}
