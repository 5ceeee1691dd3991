// SPDX-License-Identifier: AGPL-3.0-only
//! The bytes that requests may take up until they are answered.
//!
//! A request is charged when its prefix tells its size, before its body is read. Small ones are let
//! in or refused at once. Large ones may fill a part of the budget only, so that there is always
//! room for small ones; they wait for it in the order in which they came, and one of them is always
//! let in, whatever its size. Charges are given back from both threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::status::Status;

/// From this on a request is large: a batch of a thousand small messages is not.
const LARGE_BYTES: usize = 256 * 1024;
/// What large requests leave to the others, as a part of the budget.
const SMALL_SHARE: usize = 4;
/// Requests that wait for room, each with a window of its body.
const WAITING_MAX: usize = 32;

#[derive(Default)]
struct Level {
    taken: usize,
    large: usize, // how many of those let in are large
    waiting: VecDeque<(usize, oneshot::Sender<()>)>,
}

pub struct Budget {
    max: usize,
    large_max: usize,
    level: Mutex<Level>,
}

/// Bytes that are taken until this is dropped.
pub struct Charge {
    budget: Arc<Budget>,
    size: usize,
}

impl Budget {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, large_max: max - max / SMALL_SHARE, level: Mutex::default() })
    }

    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Return whether a request of a size would be refused now.
    pub fn is_full(&self, size: usize) -> bool {
        let mut level = self.lock();
        if size < LARGE_BYTES {
            return level.taken > 0 && level.taken + size > self.max;
        }
        level.waiting.retain(|(_, room)| !room.is_closed());
        level.waiting.len() >= WAITING_MAX
    }

    /// Take bytes for a request. Fails when there is no room and none to wait for.
    pub async fn charge(self: &Arc<Self>, size: usize) -> Result<Charge, Status> {
        let room = {
            let mut level = self.lock();
            if size < LARGE_BYTES {
                if level.taken > 0 && level.taken + size > self.max {
                    return Err(self.full(level.taken));
                }
                level.taken += size;
                return Ok(self.charged(size));
            }
            if level.waiting.is_empty() && self.has_room(&level, size) {
                level.taken += size;
                level.large += 1;
                return Ok(self.charged(size));
            }
            level.waiting.retain(|(_, room)| !room.is_closed());
            if level.waiting.len() >= WAITING_MAX {
                return Err(Status::overloaded(format!(
                    "{WAITING_MAX} large requests are waiting already; try again later"
                )));
            }
            let (told, room) = oneshot::channel();
            level.waiting.push_back((size, told));
            room
        };
        let mut turn = Turn { budget: self, size, room };
        // The sender lives as long as the budget, and that is borrowed here.
        let _ = (&mut turn.room).await;
        Ok(turn.charged())
    }

    /// Take further bytes for a request that turned out larger than it was. Never waits.
    pub fn grow(&self, charge: &mut Charge, size: usize) -> Result<(), Status> {
        let mut level = self.lock();
        let others = level.taken - charge.size;
        let more = size.saturating_sub(charge.size);
        if others > 0 && others + size > self.max {
            return Err(self.full(others));
        }
        if charge.size < LARGE_BYTES && charge.size + more >= LARGE_BYTES {
            level.large += 1;
        }
        level.taken += more;
        charge.size += more;
        Ok(())
    }

    fn full(&self, taken: usize) -> Status {
        Status::overloaded(format!(
            "requests of {taken} bytes are waiting already; try again later"
        ))
    }

    fn charged(self: &Arc<Self>, size: usize) -> Charge {
        Charge { budget: self.clone(), size }
    }

    fn has_room(&self, level: &Level, size: usize) -> bool {
        level.large == 0 || level.taken + size <= self.large_max
    }

    fn give_back(&self, size: usize) {
        let mut level = self.lock();
        level.taken -= size;
        if size >= LARGE_BYTES {
            level.large -= 1;
        }
        while let Some((size, _)) = level.waiting.front() {
            let size = *size;
            if !self.has_room(&level, size) {
                return;
            }
            let (_, told) = level.waiting.pop_front().expect("it was just looked at");
            if told.send(()).is_ok() {
                level.taken += size;
                level.large += 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Level> {
        self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.size);
    }
}

/// A large request that waits. Its caller may leave just when room has come.
struct Turn<'a> {
    budget: &'a Arc<Budget>,
    size: usize,
    room: oneshot::Receiver<()>,
}

impl Turn<'_> {
    fn charged(self) -> Charge {
        let charge = self.budget.charged(self.size);
        std::mem::forget(self);
        charge
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.room.close();
        if self.room.try_recv().is_ok() {
            self.budget.give_back(self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{pin, Pin};
    use std::task::{Context, Poll, Waker};

    const MIB: usize = 1024 * 1024;

    fn once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn now(budget: &Arc<Budget>, size: usize) -> Result<Charge, Status> {
        match once(pin!(budget.charge(size))) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("{size} bytes wait"),
        }
    }

    #[test]
    fn small_requests_beyond_the_budget_are_refused_with_its_level() {
        let budget = Budget::new(1000);
        let held = now(&budget, 900).expect("it is empty");
        let refusal = now(&budget, 101).err().expect("it is full");
        assert_eq!(refusal.reason, "OVERLOADED");
        assert_eq!(refusal.message, "requests of 900 bytes are waiting already; try again later");
        let rest = now(&budget, 100).expect("it fits");
        drop((held, rest));
        assert_eq!(budget.taken(), 0);
        assert!(now(&budget, 5000).is_ok(), "one is always let in");
    }

    #[test]
    fn large_requests_wait_in_order_and_leave_room_for_small_ones() {
        let budget = Budget::new(8 * MIB);
        let first = now(&budget, 5 * MIB).expect("it is empty");
        let mut second = pin!(budget.charge(4 * MIB));
        let mut third = pin!(budget.charge(MIB));
        assert!(once(second.as_mut()).is_pending());
        assert!(once(third.as_mut()).is_pending(), "it would fit, but it is not its turn");
        assert!(now(&budget, 1000).is_ok());
        drop(first);
        let Poll::Ready(Ok(second)) = once(second.as_mut()) else { panic!("there is room") };
        let Poll::Ready(Ok(third)) = once(third.as_mut()) else { panic!("there is room") };
        assert_eq!(budget.taken(), 5 * MIB);
        drop((second, third));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn one_large_request_is_let_in_beside_small_ones() {
        let budget = Budget::new(MIB);
        let small = now(&budget, 1000).expect("it is empty");
        let large = now(&budget, 4 * MIB).expect("no other large one is there");
        drop((small, large));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn who_leaves_while_waiting_takes_nothing_along() {
        let budget = Budget::new(MIB);
        let first = now(&budget, MIB).expect("it is empty");
        {
            let mut gone = pin!(budget.charge(MIB));
            assert!(once(gone.as_mut()).is_pending());
        }
        {
            let mut late = Box::pin(budget.charge(MIB));
            assert!(once(late.as_mut()).is_pending());
            drop(first); // room comes, and the caller leaves without a look
        }
        assert_eq!(budget.taken(), 0);
        assert!(now(&budget, MIB).is_ok());
    }

    #[test]
    fn waiting_is_bounded() {
        let budget = Budget::new(MIB);
        let _first = now(&budget, MIB).expect("it is empty");
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(budget.charge(MIB))).collect();
        assert!(waiting.iter_mut().all(|one| once(one.as_mut()).is_pending()));
        let refusal = now(&budget, MIB).err().expect("too many wait");
        assert_eq!(refusal.message, "32 large requests are waiting already; try again later");
        waiting.pop();
        assert!(once(pin!(budget.charge(MIB))).is_pending());
    }

    #[test]
    fn what_is_inflated_is_charged_anew() {
        let budget = Budget::new(MIB);
        let _other = now(&budget, 1000).expect("it is empty");
        let mut charge = now(&budget, 100).expect("it fits");
        assert!(budget.grow(&mut charge, MIB / 2).is_ok());
        assert_eq!(budget.taken(), MIB / 2 + 1000);
        assert!(budget.grow(&mut charge, MIB).is_err());
        drop(charge);
        assert_eq!(budget.taken(), 1000);
    }
}
