// SPDX-License-Identifier: AGPL-3.0-only
//! The calls that are under way, on the edge's own thread: what waits to be sent on each, and the
//! word to Python when a caller leaves.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use tokio::task::AbortHandle;

use crate::budget::Charge;
use crate::figures::Place;
use crate::inbox::{Event, Inbox, Standing};
use crate::status::Status;
use crate::unread::{Reader, Unread, Waiting};

/// What is still to be sent, in order.
pub enum Out {
    Headers,
    Frame { content: Bytes, taken: Taken },
    End(Status),
}

/// What follows when HTTP/2 has taken a frame over.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Taken {
    #[default]
    Nothing,
    /// Python hears of it.
    Told,
    /// The same, and with this frame the call is ended.
    ToldLast,
    /// Another message of the call may come.
    Replied,
}

/// One call. Calls that the edge answers by itself have the id 0 and no standing.
#[derive(Default)]
pub struct Call {
    pub id: u64,
    pub standing: OnceCell<Arc<Standing>>,
    queue: RefCell<VecDeque<Out>>,
    is_over: Cell<bool>,
    sender: RefCell<Option<Waker>>,
    reader: RefCell<Option<Waker>>,
    credit: Cell<u64>,
    /// Why no further message could be read; the call ends with this, whatever Python says.
    spoilt: RefCell<Option<Status>>,
    held: RefCell<VecDeque<Arc<Charge>>>,
    peer: OnceCell<Rc<Reader>>,
    unread: RefCell<VecDeque<Waiting>>,
}

impl Call {
    /// A call that the edge answers by itself.
    pub fn own() -> Rc<Self> {
        Rc::new(Self::default())
    }

    pub fn push(&self, out: Out) {
        if self.is_over.get() {
            return;
        }
        if matches!(out, Out::End(_)) {
            self.is_over.set(true);
            self.held.borrow_mut().clear();
            wake(&self.reader);
        }
        self.queue.borrow_mut().push_back(out);
        wake(&self.sender);
    }

    /// Answer it, and end it. The answer counts as unread until its end is asked for.
    pub fn answer(&self, content: Bytes, unread: &Rc<Unread>) {
        self.count(&content, unread);
        self.push(Out::Frame { content, taken: Taken::Nothing });
        self.push(Out::End(Status::ok()));
    }

    /// Answer its oldest message, which takes up no bytes any more: else whoever reads no answers
    /// would keep them from others. The answer counts as unread until HTTP/2 has taken it over.
    pub fn reply(&self, content: Bytes, unread: &Rc<Unread>) {
        if self.is_over.get() {
            return;
        }
        self.held.borrow_mut().pop_front();
        self.count(&content, unread);
        self.push(Out::Frame { content, taken: Taken::Replied });
    }

    fn count(&self, content: &Bytes, unread: &Rc<Unread>) {
        let waiting = self.peer.get().and_then(|it| unread.put(it, content.len()));
        self.unread.borrow_mut().extend(waiting);
    }

    /// Let a newer frame take the place of one that is still waiting.
    pub fn replace(&self, content: Bytes) {
        self.queue.borrow_mut().retain(|out| !matches!(out, Out::Frame { .. }));
        self.push(Out::Frame { content, taken: Taken::Nothing });
    }

    /// End it as Python says, unless it was spoilt before.
    pub fn end(&self, status: Status) {
        let spoilt = self.spoilt.borrow_mut().take();
        self.push(Out::End(spoilt.unwrap_or(status)));
    }

    /// End it now; what waits is not sent, an end that was to follow neither.
    pub fn cut(&self, status: Status) {
        self.queue.borrow_mut().clear();
        self.is_over.set(false);
        self.push(Out::End(status));
    }

    pub fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Whose call it is; 0 if the edge answers it by itself.
    pub fn peer(&self) -> u64 {
        self.peer.get().map_or(0, |reader| reader.id)
    }

    pub fn poll_next(&self, waker: &Waker) -> Poll<Out> {
        match self.queue.borrow_mut().pop_front() {
            Some(out) => {
                wake(&self.reader);
                Poll::Ready(out)
            }
            None => {
                remember(&self.sender, waker);
                Poll::Pending
            }
        }
    }

    /// Wait until there is something to send; return the status if that is the call's end.
    pub async fn begun(&self) -> Option<Status> {
        poll_fn(|context| {
            let mut queue = self.queue.borrow_mut();
            match queue.front() {
                None => {
                    remember(&self.sender, context.waker());
                    Poll::Pending
                }
                Some(Out::End(status)) => {
                    let status = status.clone();
                    queue.clear();
                    Poll::Ready(Some(status))
                }
                Some(_) => Poll::Ready(None),
            }
        })
        .await
    }

    /// Wait until all that was pushed has been taken.
    pub async fn drained(&self) {
        poll_fn(|context| {
            if self.queue.borrow().is_empty() {
                return Poll::Ready(());
            }
            remember(&self.reader, context.waker());
            Poll::Pending
        })
        .await;
    }

    // --- The messages of a call that brings many -----------------------------------------------

    /// Let so many further messages come.
    pub fn more(&self, count: u64) {
        self.credit.set(self.credit.get().saturating_add(count));
        wake(&self.reader);
    }

    /// HTTP/2 has taken over the oldest answer, and another message may come.
    pub fn replied(&self) {
        self.unread.borrow_mut().pop_front();
        self.more(1);
    }

    /// No further message can be read. What came before is still to be answered.
    pub fn spoil(&self, status: Status) {
        *self.spoilt.borrow_mut() = Some(status);
    }

    /// Wait until a message may come.
    pub async fn credit(&self) {
        poll_fn(|context| {
            if self.credit.get() > 0 || self.is_over.get() {
                return Poll::Ready(());
            }
            remember(&self.reader, context.waker());
            Poll::Pending
        })
        .await;
    }

    /// A message has come, and takes up its bytes until it is answered.
    pub fn hold(&self, charge: Arc<Charge>) {
        self.credit.set(self.credit.get().saturating_sub(1));
        self.held.borrow_mut().push_back(charge);
    }
}

fn wake(waker: &RefCell<Option<Waker>>) {
    if let Some(waker) = waker.borrow_mut().take() {
        waker.wake();
    }
}

fn remember(kept: &RefCell<Option<Waker>>, waker: &Waker) {
    let mut kept = kept.borrow_mut();
    match kept.as_ref() {
        Some(known) if known.will_wake(waker) => {}
        _ => *kept = Some(waker.clone()),
    }
}

/// The calls that Python knows and has not ended.
pub struct Calls {
    by_id: RefCell<HashMap<u64, Rc<Call>>>,
    next: Cell<u64>,
    inbox: Arc<Inbox>,
}

impl Calls {
    pub fn new(inbox: Arc<Inbox>) -> Rc<Self> {
        Rc::new(Self { by_id: RefCell::default(), next: Cell::new(1), inbox })
    }

    /// Enter a call; it may bring one message to begin with.
    pub fn begin(&self, standing: Arc<Standing>, peer: Rc<Reader>) -> Rc<Call> {
        let id = self.next.replace(self.next.get() + 1);
        let call = Rc::new(Call { id, credit: Cell::new(1), ..Call::default() });
        let _ = call.standing.set(standing);
        let _ = call.peer.set(peer);
        self.by_id.borrow_mut().insert(id, call.clone());
        call
    }

    pub fn find(&self, id: u64) -> Option<Rc<Call>> {
        self.by_id.borrow().get(&id).cloned()
    }

    /// Python has ended a call: return it, if its caller is still there.
    pub fn end(&self, id: u64) -> Option<Rc<Call>> {
        let call = self.by_id.borrow_mut().remove(&id)?;
        if let Some(standing) = call.standing.get() {
            standing.answered();
        }
        Some(call)
    }

    /// The caller of a call has left, or its time is over. Python hears of it if it knew the call
    /// and had not ended it.
    pub fn leave(&self, call: &Call) {
        if self.by_id.borrow_mut().remove(&call.id).is_none() {
            return;
        }
        if let Some(standing) = call.standing.get() {
            if standing.withdraw() {
                self.inbox.push(Event::Gone { id: call.id }, Some(standing.clone()));
            }
        }
    }

    /// End every call that Python has not ended.
    pub fn end_all(&self, status: &Status) {
        let calls: Vec<_> = self.by_id.borrow_mut().drain().map(|(_, call)| call).collect();
        for call in calls {
            call.push(Out::End(status.clone()));
        }
    }
}

/// Goes with a call from its beginning to the end of its answer; whoever drops it has left.
pub struct Leash {
    calls: Rc<Calls>,
    pub call: Rc<Call>,
    tasks: Vec<AbortHandle>,
    _places: Vec<Place>,
}

impl Leash {
    pub fn new(calls: &Rc<Calls>, call: Rc<Call>, places: Vec<Place>) -> Self {
        Self { calls: calls.clone(), call, tasks: Vec::new(), _places: places }
    }

    /// Python has ended the call, if it was still there; nothing is told any more.
    pub fn ended(&self) {
        self.calls.end(self.call.id);
    }

    /// Let a task end with the call.
    pub fn bind(&mut self, task: AbortHandle) {
        self.tasks.push(task);
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.calls.leave(&self.call);
    }
}
