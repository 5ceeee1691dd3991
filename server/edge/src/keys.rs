// SPDX-License-Identifier: AGPL-3.0-only
//! Which `authorization` values may send bodies. Python decides, once per value, and its verdict is
//! remembered until it is forgotten; calls wait for it with their bodies unread. Refusals are not
//! remembered: whoever tries keys makes Python's log grow, not our memory.
//!
//! Both threads use this, so that a value that Python forgot is forgotten when it returns.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::inbox::{Event, Inbox};
use crate::status::Status;

const ADMITTED_MAX: usize = 10_000;
/// Values that Python has not decided on, each of which may be as long as metadata may be.
const UNDECIDED_MAX: usize = 1024;
/// Calls that wait for a verdict, each with a window of its body.
const WAITING_MAX: usize = 4096;

type Verdict = Result<(), Status>;

#[derive(Default)]
struct Table {
    admitted: HashSet<String>,
    undecided: HashMap<Option<String>, Vec<oneshot::Sender<Verdict>>>,
    waiting: usize,
}

#[derive(Default)]
pub struct Keys(Mutex<Table>);

impl Keys {
    /// Wait for the verdict on a value; `path` is that of the call. Fails if it is a refusal, or
    /// too many wait.
    pub async fn admitted(&self, value: Option<&str>, path: &str, inbox: &Inbox) -> Verdict {
        let verdict = {
            let mut table = self.lock();
            if value.is_some_and(|value| table.admitted.contains(value)) {
                return Ok(());
            }
            let value = value.map(str::to_owned);
            let is_new = !table.undecided.contains_key(&value);
            if table.waiting >= WAITING_MAX || (is_new && table.undecided.len() >= UNDECIDED_MAX) {
                return Err(Status::overloaded(format!(
                    "{} calls are waiting for their keys to be checked; try again later",
                    table.waiting
                )));
            }
            let (told, verdict) = oneshot::channel();
            table.waiting += 1;
            table.undecided.entry(value.clone()).or_default().push(told);
            if is_new {
                inbox.push(Event::Key { value, path: path.to_owned() }, None);
            }
            verdict
        };
        verdict.await.unwrap_or_else(|_| Err(Status::shutting_down()))
    }

    pub fn admit(&self, value: &str) {
        let mut table = self.lock();
        if table.admitted.len() >= ADMITTED_MAX && !table.admitted.contains(value) {
            if let Some(one) = table.admitted.iter().next().cloned() {
                table.admitted.remove(&one);
            }
        }
        table.admitted.insert(value.to_owned());
        decide(&mut table, &Some(value.to_owned()), &Ok(()));
    }

    pub fn reject(&self, value: Option<&str>, status: Status) {
        let mut table = self.lock();
        if let Some(value) = value {
            table.admitted.remove(value);
        }
        decide(&mut table, &value.map(str::to_owned), &Err(status));
    }

    /// Forget a verdict, or all of them.
    pub fn forget(&self, value: Option<&str>) {
        let mut table = self.lock();
        match value {
            Some(value) => drop(table.admitted.remove(value)),
            None => table.admitted.clear(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn decide(table: &mut Table, value: &Option<String>, verdict: &Verdict) {
    if let Some(waiting) = table.undecided.remove(value) {
        table.waiting -= waiting.len();
        for told in waiting {
            let _ = told.send(verdict.clone()); // its caller may have left
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{pin, Pin};
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    fn once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn inbox() -> Arc<Inbox> {
        Inbox::new(Arc::default()).expect("there are descriptors")
    }

    #[test]
    fn a_value_is_asked_about_once_and_remembered_until_it_is_forgotten() {
        let (keys, inbox) = (Keys::default(), inbox());
        let mut first = pin!(keys.admitted(Some("a"), "/S/M", &inbox));
        let mut second = pin!(keys.admitted(Some("a"), "/S/M", &inbox));
        assert!(once(first.as_mut()).is_pending() && once(second.as_mut()).is_pending());
        let asked = inbox.take(9);
        let [Event::Key { value, path }] = &asked[..] else { panic!("asked once") };
        assert_eq!((value.as_deref(), path.as_str()), (Some("a"), "/S/M"));
        keys.admit("a");
        assert_eq!(once(first), Poll::Ready(Ok(())));
        assert_eq!(once(second), Poll::Ready(Ok(())));
        assert_eq!(once(pin!(keys.admitted(Some("a"), "/S/M", &inbox))), Poll::Ready(Ok(())));
        keys.forget(None);
        assert!(once(pin!(keys.admitted(Some("a"), "/S/M", &inbox))).is_pending());
        assert_eq!(inbox.take(9).len(), 1);
    }

    #[test]
    fn a_refusal_ends_those_that_wait_and_is_not_remembered() {
        let (keys, inbox) = (Keys::default(), inbox());
        let no = Status::new(16, "no", "UNAUTHENTICATED");
        let mut call = pin!(keys.admitted(None, "/S/M", &inbox));
        assert!(once(call.as_mut()).is_pending());
        keys.reject(None, no.clone());
        assert_eq!(once(call), Poll::Ready(Err(no)));
        assert!(once(pin!(keys.admitted(None, "/S/M", &inbox))).is_pending());
        assert_eq!(inbox.take(9).len(), 2);
    }

    #[test]
    fn what_is_undecided_is_bounded() {
        let (keys, inbox) = (Keys::default(), inbox());
        for n in 0..UNDECIDED_MAX {
            assert!(once(pin!(keys.admitted(Some(&n.to_string()), "/S/M", &inbox))).is_pending());
        }
        let Poll::Ready(Err(refusal)) = once(pin!(keys.admitted(Some("more"), "/S/M", &inbox)))
        else {
            panic!("it waits")
        };
        assert_eq!(refusal.reason, "OVERLOADED");
    }

    #[test]
    fn what_is_admitted_is_bounded() {
        let keys = Keys::default();
        for n in 0..ADMITTED_MAX + 10 {
            keys.admit(&n.to_string());
        }
        assert_eq!(keys.lock().admitted.len(), ADMITTED_MAX);
    }
}
