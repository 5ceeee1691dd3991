// SPDX-License-Identifier: AGPL-3.0-only
//! The budget, alone and by a model of it.

use super::*;
use std::future::Future;
use std::pin::{pin, Pin};
use std::task::{Context, Poll, Waker};

const MIB: usize = 1024 * 1024;
const PEER: u64 = 1;
const OTHER: u64 = 2;

fn once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn small(budget: &Arc<Budget>, size: usize) -> Result<Charge, Status> {
    let mut charge = budget.nothing(PEER);
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
    assert!(!budget.is_wanted(OTHER));
    let refusal = small(&budget, 101).err().expect("it is full");
    assert_eq!(refusal.reason, "OVERLOADED");
    assert_eq!(refusal.message, "requests of 900 bytes are waiting already; try again later");
    assert!(budget.is_wanted(OTHER));
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
    assert!(budget.is_wanted(OTHER));
    assert!(small(&budget, 1000).is_ok());
    drop(first);
    let Poll::Ready(Ok(second)) = once(second.as_mut()) else { panic!("there is room") };
    let Poll::Ready(Ok(third)) = once(third.as_mut()) else { panic!("there is room") };
    assert!(!budget.is_wanted(OTHER));
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
    assert!(!budget.is_wanted(OTHER));
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
    let Poll::Ready(Err(refusal)) = once(pin!(budget.claim(MIB, 0))) else { panic!("it waits") };
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

#[test]
fn who_leaves_lets_those_behind_move_up() {
    let budget = Budget::new(8 * MIB);
    let _held = large(&budget, 4 * MIB).expect("it is empty");
    let mut first = Box::pin(budget.claim(4 * MIB, PEER));
    let mut second = pin!(budget.claim(MIB, OTHER));
    assert!(once(first.as_mut()).is_pending() && once(second.as_mut()).is_pending());
    drop(first);
    assert!(matches!(once(second.as_mut()), Poll::Ready(Ok(_))), "there was room all along");
}

#[test]
fn who_comes_again_and_again_overtakes_nobody_for_ever() {
    let budget = Budget::new(MIB);
    let mut held = large(&budget, MIB).expect("it is empty");
    let mut patient = stand(&budget, &[PEER; 3]);
    for round in 1.. {
        let mut again = Box::pin(budget.claim(MIB, OTHER));
        assert!(once(again.as_mut()).is_pending());
        drop(held);
        while let Poll::Ready(Ok(charge)) = once(patient[0].as_mut()) {
            drop((charge, patient.remove(0)));
            if patient.is_empty() {
                return;
            }
        }
        assert!(round <= 3, "{} still wait", patient.len());
        let Poll::Ready(Ok(charge)) = once(again.as_mut()) else { panic!("nobody has it") };
        held = charge;
    }
}

#[test]
fn what_a_connection_wants_itself_hurries_only_others() {
    let budget = Budget::new(MIB);
    let held = large(&budget, MIB).expect("it is empty");
    let waiting = stand(&budget, &[PEER]);
    assert!(!budget.is_wanted(PEER) && budget.is_wanted(OTHER) && budget.is_short());
    drop((held, waiting));
    let _full = small(&budget, MIB - 1).expect("it is empty");
    assert!(!budget.is_short());
    for (peer, is_wanted) in [(OTHER, [true, false]), (3, [true, true]), (PEER, [true, true])] {
        assert!(budget.is_full(9, peer));
        assert_eq!([budget.is_wanted(PEER), budget.is_wanted(OTHER)], is_wanted, "{peer}");
    }
}

#[test]
fn some_at_a_time_are_finished_within_an_eighth_of_the_budget() {
    for (max, count) in [(1000, 1), (MIB, 1), (8 * MIB, 4), (64 * MIB, 32)] {
        assert_eq!(Budget::new(max).finishing.available_permits(), count);
    }
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most
    }
}

#[test]
fn whatever_happens_all_bytes_are_accounted_for_and_the_line_keeps_its_rules() {
    const SIZES: [usize; 9] =
        [0, 1, 1000, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, MIB, 3 * MIB, 16 * MIB];
    for (seed, max) in (1..=60).flat_map(|seed| [MIB, 8 * MIB].map(|max| (seed, max))) {
        let mut dice = Dice(seed << 32 | 0x7F4A_7C15);
        let budget = Budget::new(max);
        let mut held: Vec<Charge> = Vec::new();
        let mut waiting: Vec<(usize, Waiting)> = Vec::new();
        for step in 0..1500 {
            let size = SIZES[dice.below(SIZES.len())];
            let peer = dice.below(6) as u64;
            match dice.below(10) {
                0..=3 if size >= LARGE_BYTES => {
                    let mut one: Waiting = Box::pin(budget.claim(size, peer));
                    match once(one.as_mut()) {
                        Poll::Ready(found) => held.extend(found),
                        Poll::Pending => waiting.push((size, one)),
                    }
                    // Who gave way has to hear of it, and others may hear that they have room.
                    waiting.retain_mut(|(_, one)| match once(one.as_mut()) {
                        Poll::Ready(found) => {
                            held.extend(found);
                            false
                        }
                        Poll::Pending => true,
                    });
                }
                0..=3 => {
                    let mut charge = budget.nothing(peer);
                    let _ = budget.grow(&mut charge, size);
                    held.push(charge);
                }
                4 if !held.is_empty() => {
                    let at = dice.below(held.len());
                    let before = budget.taken();
                    if budget.grow(&mut held[at], size).is_err() {
                        assert_eq!(budget.taken(), before);
                    }
                }
                5 | 6 if !waiting.is_empty() => {
                    drop(waiting.swap_remove(dice.below(waiting.len())));
                }
                _ if !held.is_empty() => drop(held.swap_remove(dice.below(held.len()))),
                _ => {}
            }
            let level = budget.lock();
            let line = &level.waiting;
            assert!(line.iter().all(|one| !one.told.is_closed()), "{seed} {step}");
            let told = waiting.iter().map(|(size, _)| size).sum::<usize>()
                - line.iter().map(|one| one.size).sum::<usize>();
            let sum = held.iter().map(Charge::size).sum::<usize>() + told;
            assert_eq!(level.taken, sum, "{seed} {step}");
            let large = held.iter().filter(|it| it.size() >= LARGE_BYTES).count();
            assert_eq!(level.large, large + waiting.len() - line.len(), "{seed} {step}");
            assert!(level.taken <= max || level.large <= 1, "{seed} {step}: {}", level.taken);
            assert!(line.iter().is_sorted_by_key(|one| one.turn), "{seed} {step}");
            assert!(line.len() <= WAITING_MAX);
            for peer in 0..6 {
                let of_peer = line.iter().filter(|one| one.peer == peer).count();
                assert!(of_peer <= WAITING_OF_ONE_MAX, "{seed} {step}");
            }
            let idle = line.front().is_some_and(|first| budget.has_room(&level, first.size));
            assert!(!idle, "{seed} {step}: there is room, and nobody takes it");
        }
        drop((held, waiting));
        let level = budget.lock();
        assert_eq!((level.taken, level.large, level.waiting.len()), (0, 0, 0));
    }
}
