// SPDX-License-Identifier: AGPL-3.0-only
//! What happened, for Python: events in order, and a descriptor that is readable while there are
//! any.
//!
//! The bound is that of calls: an event of a call holds the call's place and its bytes until it is
//! taken, so callers that come and leave while Python is busy cannot fill it. A call whose caller
//! left before Python saw it is never shown.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::budget::Charge;
use crate::figures::{Figures, Place};

pub type Metadata = Vec<Option<String>>;

pub enum Event {
    Call {
        id: u64,
        route: usize,
        body: Option<Bytes>,
        metadata: Metadata,
        /// Of a stream, which may last: until Python has its request.
        _charge: Option<Charge>,
    },
    Message {
        id: u64,
        body: Bytes,
        _charge: Arc<Charge>,
    },
    HalfClosed {
        id: u64,
    },
    Taken {
        id: u64,
    },
    Gone {
        id: u64,
    },
    Key {
        value: Option<String>,
        path: String,
    },
}

const QUEUED: u8 = 0;
const SEEN: u8 = 1;
const NEVER_SEEN: u8 = 2;

/// A call's place, held by the call and by its events.
pub struct Standing {
    state: AtomicU8,
    _place: Place,
    charge: Mutex<Option<Charge>>,
}

impl Standing {
    pub fn new(place: Place, charge: Option<Charge>) -> Arc<Self> {
        Arc::new(Self { state: AtomicU8::new(QUEUED), _place: place, charge: Mutex::new(charge) })
    }

    /// Python has answered: the request takes up its bytes no more, however long the caller takes
    /// to read the answer.
    pub fn answered(&self) {
        drop(self.charge.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// The caller has left; return whether Python knows of the call.
    pub fn withdraw(&self) -> bool {
        self.state.compare_exchange(QUEUED, NEVER_SEEN, Relaxed, Relaxed).is_err()
    }

    /// Python takes an event of the call; return whether there still is one to be shown.
    fn show(&self) -> bool {
        self.state.compare_exchange(QUEUED, SEEN, Relaxed, Relaxed) != Err(NEVER_SEEN)
    }
}

#[derive(Default)]
struct Queue {
    events: VecDeque<(Event, Option<Arc<Standing>>)>,
    is_signalled: bool,
}

pub struct Inbox {
    queue: Mutex<Queue>,
    wake: OwnedFd,
    figures: Arc<Figures>,
}

impl Inbox {
    pub fn new(figures: Arc<Figures>) -> std::io::Result<Arc<Self>> {
        // SAFETY: eventfd takes no pointers, and the descriptor it returns is nobody else's.
        let wake = unsafe {
            let descriptor = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
            if descriptor < 0 {
                return Err(std::io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(descriptor)
        };
        Ok(Arc::new(Self { queue: Mutex::default(), wake, figures }))
    }

    pub fn descriptor(&self) -> i32 {
        self.wake.as_raw_fd()
    }

    pub fn push(&self, event: Event, standing: Option<Arc<Standing>>) {
        let mut queue = self.lock();
        queue.events.push_back((event, standing));
        if !queue.is_signalled {
            queue.is_signalled = true;
            self.figures.wakes.up();
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight bytes are written from an array of eight. It cannot fail: the counter
            // is at zero.
            unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Hand out at most so many events; what is left keeps the descriptor readable.
    pub fn take(&self, most: usize) -> Vec<Event> {
        self.figures.takes.up();
        let mut queue = self.lock();
        let mut found = Vec::with_capacity(most.min(queue.events.len()));
        while found.len() < most {
            let Some((event, standing)) = queue.events.pop_front() else { break };
            if standing.is_none_or(|standing| standing.show()) {
                found.push(event);
            }
        }
        if queue.events.is_empty() && queue.is_signalled {
            queue.is_signalled = false;
            let mut count = [0u8; 8];
            // SAFETY: eight bytes are read into an array of eight.
            unsafe { libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        }
        drop(queue);
        found
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox() -> Arc<Inbox> {
        Inbox::new(Arc::default()).expect("there are descriptors")
    }

    fn is_readable(inbox: &Inbox) -> bool {
        let mut poll = libc::pollfd { fd: inbox.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, and the count says one.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_while_something_is_left() {
        let inbox = inbox();
        assert!(!is_readable(&inbox));
        for id in 1..=3 {
            inbox.push(Event::Taken { id }, None);
        }
        assert_eq!(inbox.take(2).len(), 2);
        assert!(is_readable(&inbox));
        assert!(matches!(inbox.take(2)[..], [Event::Taken { id: 3 }]));
        assert!(!is_readable(&inbox));
        assert_eq!(inbox.figures.wakes.get(), 1);
    }

    #[test]
    fn a_call_whose_caller_left_first_is_never_shown_and_holds_its_place_until_then() {
        let inbox = inbox();
        let place = Place::take(&inbox.figures, |f| &f.calls_under_way, 9).expect("there is room");
        let standing = Standing::new(place, None);
        inbox.push(Event::HalfClosed { id: 1 }, Some(standing.clone()));
        assert!(!standing.withdraw());
        drop(standing);
        assert_eq!(inbox.figures.calls_under_way.get(), 1);
        assert!(inbox.take(10).is_empty());
        assert_eq!(inbox.figures.calls_under_way.get(), 0);
    }

    #[test]
    fn a_call_that_python_knows_is_not_withdrawn() {
        let inbox = inbox();
        let place = Place::take(&inbox.figures, |f| &f.calls_under_way, 9).expect("there is room");
        let standing = Standing::new(place, None);
        inbox.push(Event::HalfClosed { id: 1 }, Some(standing.clone()));
        assert_eq!(inbox.take(10).len(), 1);
        assert!(standing.withdraw());
    }
}
