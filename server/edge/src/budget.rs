// SPDX-License-Identifier: AGPL-3.0-only
//! The bytes that requests may take up until they are answered.
//!
//! A small request is charged for what has come of it, so that announcing a body takes no room from
//! others; where there is none it is refused. A large one takes room for all of it before it is
//! read, or half of many could be there and none could be finished. Large ones may fill a part of
//! the budget only, so that there is always room for small ones; they wait for it in line, and one
//! of them is always let in, whatever its size. In the line connections take turns, so one that asks
//! for much holds nobody up; where it is full, whoever would be last gives way. Charges are given
//! back from both threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, Semaphore};

use crate::status::Status;

/// From this on a request is large: a batch of a thousand small messages is not.
pub const LARGE_BYTES: usize = 256 * 1024;
/// What large requests leave to the others, as a part of the budget.
const SMALL_SHARE: usize = 4;
/// Requests that wait for room, each with a window of its body.
const WAITING_MAX: usize = 32;
/// The same of one connection. Their windows have to leave room in the connection's own, or nothing
/// that was let in could come.
pub const WAITING_OF_ONE_MAX: usize = 12;
/// How long a request that found no room counts: those that hold room and bring nothing are cut.
const WANTED: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Level {
    taken: usize,
    large: usize,              // how many of those let in are large
    waiting: VecDeque<Waiter>, // by turn
    turn: u64,                 // of who was let in last out of the line
    wanted: Option<Instant>,   // when a request last found no room
}

/// A large request in line.
struct Waiter {
    size: usize,
    peer: u64,
    turn: u64, // the next that its connection has not asked for yet
    told: oneshot::Sender<()>,
}

pub struct Budget {
    max: usize,
    large_max: usize,
    level: Mutex<Level>,
    /// Whoever holds it may finish a small request that has begun, beyond the budget if need be. One
    /// at a time: else all of them could wait for each other's bytes.
    pub finishing: Semaphore,
}

/// Bytes that are taken until this is dropped.
pub struct Charge {
    budget: Arc<Budget>,
    size: usize,
}

impl Budget {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            large_max: max - max / SMALL_SHARE,
            level: Mutex::default(),
            finishing: Semaphore::new(1),
        })
    }

    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Return whether a peer's request of a size would be refused now.
    pub fn is_full(&self, size: usize, peer: u64) -> bool {
        let mut level = self.lock();
        let is_full = if size < LARGE_BYTES {
            level.taken > 0 && level.taken + size > self.max
        } else {
            level.line_is_full(peer).is_some()
        };
        if is_full {
            level.wanted = Some(Instant::now());
        }
        is_full
    }

    /// Return whether others want room. Whoever holds some then has to make use of it.
    pub fn is_wanted(&self) -> bool {
        let mut level = self.lock();
        level.forget_who_left();
        !level.waiting.is_empty() || level.wanted.is_some_and(|last| last.elapsed() <= WANTED)
    }

    /// Return a charge of nothing, which grows with what comes of a small request.
    pub fn nothing(self: &Arc<Self>) -> Charge {
        self.charged(0)
    }

    /// Take room for all of a large request. Fails when there is none, and none to wait for.
    pub async fn claim(self: &Arc<Self>, size: usize, peer: u64) -> Result<Charge, Status> {
        let room = {
            let mut level = self.lock();
            if level.waiting.is_empty() && self.has_room(&level, size) {
                level.taken += size;
                level.large += 1;
                return Ok(self.charged(size));
            }
            level.stand_in_line(size, peer)?
        };
        let mut turn = Turn { budget: self, size, room };
        match (&mut turn.room).await {
            Ok(()) => Ok(turn.charged()),
            Err(_) => Err(crowded(WAITING_MAX)), // it gave way
        }
    }

    /// Take further bytes for a request of which more has come, or that turned out larger than it
    /// was. Never waits.
    pub fn grow(&self, charge: &mut Charge, size: usize) -> Result<(), Status> {
        if size <= charge.size {
            return Ok(());
        }
        let mut level = self.lock();
        let others = level.taken - charge.size;
        if others > 0 && others + size > self.max {
            level.wanted = Some(Instant::now());
            return Err(Status::overloaded(format!(
                "requests of {others} bytes are waiting already; try again later"
            )));
        }
        level.enlarge(charge, size);
        Ok(())
    }

    /// Take further bytes whether there are any or not; for whoever holds `finishing`.
    pub fn overdraw(&self, charge: &mut Charge, size: usize) {
        self.lock().enlarge(charge, size);
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
        while let Some(first) = level.waiting.front() {
            if !self.has_room(&level, first.size) {
                return;
            }
            let first = level.waiting.pop_front().expect("it was just looked at");
            if first.told.send(()).is_ok() {
                level.turn = first.turn;
                level.taken += first.size;
                level.large += 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Level> {
        self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn crowded(count: usize) -> Status {
    Status::overloaded(format!("{count} large requests are waiting already; try again later"))
}

impl Level {
    fn stand_in_line(&mut self, size: usize, peer: u64) -> Result<oneshot::Receiver<()>, Status> {
        let full = self.line_is_full(peer);
        let last = self.waiting.iter().rev().find(|waiter| waiter.peer == peer);
        let turn = last.map_or(self.turn, |waiter| waiter.turn + 1);
        if let Some(count) = full {
            self.wanted = Some(Instant::now());
            let gives_way = self.waiting.back().is_some_and(|waiter| waiter.turn > turn);
            if count < WAITING_MAX || !gives_way {
                return Err(crowded(count));
            }
            self.waiting.pop_back();
        }
        let (told, room) = oneshot::channel();
        let at = self.waiting.partition_point(|waiter| waiter.turn <= turn);
        self.waiting.insert(at, Waiter { size, peer, turn, told });
        Ok(room)
    }

    /// Return how many wait, of all or of a peer, if that is as many as may.
    fn line_is_full(&mut self, peer: u64) -> Option<usize> {
        self.forget_who_left();
        let of_peer = self.waiting.iter().filter(|waiter| waiter.peer == peer).count();
        match self.waiting.len() {
            _ if of_peer >= WAITING_OF_ONE_MAX => Some(of_peer),
            all @ WAITING_MAX.. => Some(all),
            _ => None,
        }
    }

    fn forget_who_left(&mut self) {
        self.waiting.retain(|waiter| !waiter.told.is_closed());
    }

    fn enlarge(&mut self, charge: &mut Charge, size: usize) {
        let more = size.saturating_sub(charge.size);
        if charge.size < LARGE_BYTES && charge.size + more >= LARGE_BYTES {
            self.large += 1;
        }
        self.taken += more;
        charge.size += more;
    }
}

impl Charge {
    pub fn size(&self) -> usize {
        self.size
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
    const PEER: u64 = 1;

    fn once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn small(budget: &Arc<Budget>, size: usize) -> Result<Charge, Status> {
        let mut charge = budget.nothing();
        budget.grow(&mut charge, size).map(|()| charge)
    }

    fn large(budget: &Arc<Budget>, size: usize) -> Result<Charge, Status> {
        match once(pin!(budget.claim(size, PEER))) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("{size} bytes wait"),
        }
    }

    #[test]
    fn small_requests_beyond_the_budget_are_refused_with_its_level() {
        let budget = Budget::new(1000);
        let held = small(&budget, 900).expect("it is empty");
        assert!(!budget.is_wanted());
        let refusal = small(&budget, 101).err().expect("it is full");
        assert_eq!(refusal.reason, "OVERLOADED");
        assert_eq!(refusal.message, "requests of 900 bytes are waiting already; try again later");
        assert!(budget.is_wanted());
        let rest = small(&budget, 100).expect("it fits");
        drop((held, rest));
        assert_eq!(budget.taken(), 0);
        assert!(small(&budget, 5000).is_ok(), "one is always let in");
    }

    #[test]
    fn large_requests_wait_in_order_and_leave_room_for_small_ones() {
        let budget = Budget::new(8 * MIB);
        let first = large(&budget, 5 * MIB).expect("it is empty");
        let mut second = pin!(budget.claim(4 * MIB, PEER));
        let mut third = pin!(budget.claim(MIB, PEER));
        assert!(once(second.as_mut()).is_pending());
        assert!(once(third.as_mut()).is_pending(), "it would fit, but it is not its turn");
        assert!(budget.is_wanted());
        assert!(small(&budget, 1000).is_ok());
        drop(first);
        let Poll::Ready(Ok(second)) = once(second.as_mut()) else { panic!("there is room") };
        let Poll::Ready(Ok(third)) = once(third.as_mut()) else { panic!("there is room") };
        assert!(!budget.is_wanted());
        assert_eq!(budget.taken(), 5 * MIB);
        drop((second, third));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn one_large_request_is_let_in_beside_small_ones() {
        let budget = Budget::new(MIB);
        let few = small(&budget, 1000).expect("it is empty");
        let many = large(&budget, 4 * MIB).expect("no other large one is there");
        drop((few, many));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn who_leaves_while_waiting_takes_nothing_along() {
        let budget = Budget::new(MIB);
        let first = large(&budget, MIB).expect("it is empty");
        {
            let mut gone = pin!(budget.claim(MIB, PEER));
            assert!(once(gone.as_mut()).is_pending());
        }
        assert!(!budget.is_wanted());
        {
            let mut late = Box::pin(budget.claim(MIB, PEER));
            assert!(once(late.as_mut()).is_pending());
            drop(first); // room comes, and the caller leaves without a look
        }
        assert_eq!(budget.taken(), 0);
        assert!(large(&budget, MIB).is_ok());
    }

    #[test]
    fn waiting_is_bounded_of_one_peer_and_of_all() {
        let budget = Budget::new(MIB);
        let _first = large(&budget, MIB).expect("it is empty");
        let mut waiting = stand(&budget, &[0; WAITING_OF_ONE_MAX]);
        assert!(budget.is_full(MIB, 0) && !budget.is_full(MIB, 1));
        let Poll::Ready(Err(refusal)) = once(pin!(budget.claim(MIB, 0))) else {
            panic!("it waits")
        };
        assert_eq!(refusal.message, "12 large requests are waiting already; try again later");
        waiting.clear();
        waiting = stand(&budget, &(1..=WAITING_MAX as u64).collect::<Vec<_>>());
        let refusal = once(pin!(budget.claim(MIB, 99)));
        let Poll::Ready(Err(refusal)) = refusal else { panic!("too many wait") };
        assert_eq!(refusal.message, "32 large requests are waiting already; try again later");
        waiting.pop();
        assert!(once(pin!(budget.claim(MIB, 99))).is_pending());
    }

    #[test]
    fn connections_take_turns_in_the_line() {
        let budget = Budget::new(MIB);
        let first = large(&budget, MIB).expect("it is empty");
        let mut waiting = stand(&budget, &[7, 7, 7, 8, 9, 8]);
        let mut order = Vec::new();
        let mut held = first;
        while order.len() < waiting.len() {
            drop(held);
            let mut next = None;
            for (at, one) in waiting.iter_mut().enumerate() {
                if !order.contains(&at) {
                    if let Poll::Ready(Ok(charge)) = once(one.as_mut()) {
                        order.push(at);
                        next = Some(charge);
                    }
                }
            }
            held = next.expect("somebody is next");
        }
        assert_eq!(order, [0, 3, 4, 1, 5, 2]);
    }

    #[test]
    fn who_would_be_last_gives_way_where_the_line_is_full() {
        let budget = Budget::new(MIB);
        let first = large(&budget, MIB).expect("it is empty");
        let peers: Vec<u64> = (0..WAITING_MAX as u64).map(|n| n / 11).collect();
        let mut waiting = stand(&budget, &peers);
        let mut new = stand(&budget, &[99]);
        let gone: Vec<usize> = (0..WAITING_MAX)
            .filter(|at| matches!(once(waiting[*at].as_mut()), Poll::Ready(Err(_))))
            .collect();
        assert_eq!(gone, [21], "of those who asked for most the one who came last");
        drop(first);
        let Poll::Ready(Ok(held)) = once(waiting[0].as_mut()) else { panic!("it was first") };
        drop(held);
        let mut fourth = || matches!(once(new[0].as_mut()), Poll::Ready(Ok(_)));
        assert!(!fourth());
        for at in [11, 22] {
            assert!(matches!(once(waiting[at].as_mut()), Poll::Ready(Ok(_))));
        }
        assert!(fourth());
    }

    type Waiting<'a> = Pin<Box<dyn Future<Output = Result<Charge, Status>> + 'a>>;

    /// Stand in line with a large request of each of these peers.
    fn stand<'a>(budget: &'a Arc<Budget>, peers: &[u64]) -> Vec<Waiting<'a>> {
        let mut waiting: Vec<Waiting<'a>> = Vec::new();
        for peer in peers {
            let mut one = Box::pin(budget.claim(MIB, *peer));
            assert!(once(one.as_mut()).is_pending());
            waiting.push(one);
        }
        waiting
    }

    #[test]
    fn what_comes_or_is_inflated_is_charged_anew() {
        let budget = Budget::new(MIB);
        let _other = small(&budget, 1000).expect("it is empty");
        let mut charge = small(&budget, 100).expect("it fits");
        assert!(budget.grow(&mut charge, MIB / 2).is_ok());
        assert_eq!(budget.taken(), MIB / 2 + 1000);
        assert!(budget.grow(&mut charge, MIB).is_err());
        budget.overdraw(&mut charge, MIB);
        assert_eq!(budget.taken(), MIB + 1000);
        assert!(budget.grow(&mut charge, MIB).is_ok(), "it has that already");
        drop(charge);
        assert_eq!(budget.taken(), 1000);
    }
}
