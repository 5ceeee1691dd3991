// SPDX-License-Identifier: AGPL-3.0-only
//! The bytes that requests may take up until they are answered.
//!
//! A small request is charged for what has come of it, so that announcing a body takes no room from
//! others; where there is none it is refused. A large one takes room for all of it before it is
//! read, or half of many could be there and none could be finished. Large ones may fill a part of
//! the budget only, so that there is always room for small ones; they wait for it in line, and one
//! of them is always let in, whatever its size. In the line connections take turns, so that one
//! which asks for much holds nobody up; where it is full, whoever would be last gives way. Nobody
//! has to hurry for what the same connection wants. Charges are given back from both threads.

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
/// How far small requests that are being finished may go beyond the budget, as a part of it.
const FINISHING_SHARE: usize = 8;

#[derive(Default)]
struct Level {
    taken: usize,
    large: usize,              // how many of those let in are large
    waiting: VecDeque<Waiter>, // by turn
    turn: u64,                 // of who was let in last out of the line
    // Which connections found no room last, and when: two, so that one of them is another's.
    wanted: [Option<(Instant, u64)>; 2],
}

/// A large request in line.
struct Waiter {
    size: usize,
    peer: u64,
    turn: u64, // after that of its connection's last one, or the next if none of it waits
    told: oneshot::Sender<()>,
}

pub struct Budget {
    max: usize,
    large_max: usize,
    level: Mutex<Level>,
    /// Whoever holds it may finish a small request that has begun, beyond the budget if need be:
    /// else all could wait for each other's bytes. Several at a time, for some bring nothing more.
    pub finishing: Semaphore,
}

/// Bytes that are taken until this is dropped.
pub struct Charge {
    budget: Arc<Budget>,
    size: usize,
    peer: u64,
}

impl Budget {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            large_max: max - max / SMALL_SHARE,
            level: Mutex::default(),
            finishing: Semaphore::new((max / FINISHING_SHARE / LARGE_BYTES).max(1)),
        })
    }

    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Return whether a peer's small request of a size would be refused now.
    pub fn is_full(&self, size: usize, peer: u64) -> bool {
        let mut level = self.lock();
        let is_full = level.taken > 0 && level.taken + size > self.max;
        if is_full {
            level.want(peer);
        }
        is_full
    }

    /// Return whether others want room than this peer. Who holds some then has to make use of it.
    pub fn is_wanted(&self, peer: u64) -> bool {
        self.lock().is_wanted(|other| other != peer)
    }

    /// Return whether anybody wants room, the same peer too.
    pub fn is_short(&self) -> bool {
        self.lock().is_wanted(|_| true)
    }

    /// Return a charge of nothing, which grows with what comes of a small request.
    pub fn nothing(self: &Arc<Self>, peer: u64) -> Charge {
        self.charged(0, peer)
    }

    /// Take room for all of a large request. Fails when there is none, and none to wait for.
    pub async fn claim(self: &Arc<Self>, size: usize, peer: u64) -> Result<Charge, Status> {
        let room = {
            let mut level = self.lock();
            if level.waiting.is_empty() && self.has_room(&level, size) {
                level.taken += size;
                level.large += 1;
                return Ok(self.charged(size, peer));
            }
            let room = level.stand_in_line(size, peer)?;
            self.let_in(&mut level); // it may stand first, and be smaller than who did
            room
        };
        let mut turn = Turn { budget: self, size, peer, room };
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
            level.want(charge.peer);
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

    fn charged(self: &Arc<Self>, size: usize, peer: u64) -> Charge {
        Charge { budget: self.clone(), size, peer }
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
        self.let_in(&mut level);
    }

    /// Somebody has left the line, who may have kept it from moving.
    fn move_up(&self) {
        let mut level = self.lock();
        level.forget_who_left();
        self.let_in(&mut level);
    }

    fn let_in(&self, level: &mut Level) {
        while let Some(first) = level.waiting.front() {
            if !self.has_room(level, first.size) {
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
        // Not the turn that it is now: whoever comes again and again would always be before others.
        let turn = last.map_or(self.turn, |waiter| waiter.turn) + 1;
        if let Some(count) = full {
            self.want(peer);
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

    fn want(&mut self, peer: u64) {
        let [last, _] = self.wanted;
        if last.is_some_and(|(_, who)| who != peer) {
            self.wanted[1] = last;
        }
        self.wanted[0] = Some((Instant::now(), peer));
    }

    fn is_wanted(&mut self, counts: impl Fn(u64) -> bool) -> bool {
        self.forget_who_left();
        let lately = |(when, who): &(Instant, u64)| when.elapsed() <= WANTED && counts(*who);
        self.waiting.iter().any(|waiter| counts(waiter.peer))
            || self.wanted.iter().flatten().any(lately)
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
    peer: u64,
    room: oneshot::Receiver<()>,
}

impl Turn<'_> {
    fn charged(self) -> Charge {
        let charge = self.budget.charged(self.size, self.peer);
        std::mem::forget(self);
        charge
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.room.close();
        if self.room.try_recv().is_ok() {
            self.budget.give_back(self.size);
        } else {
            self.budget.move_up();
        }
    }
}

#[cfg(test)]
mod tests;
