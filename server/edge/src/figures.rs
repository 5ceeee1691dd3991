// SPDX-License-Identifier: AGPL-3.0-only
//! What the edge counts, for metrics and tests. Counters only go up; the others are levels.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

#[derive(Default)]
pub struct Figure(AtomicU64);

impl Figure {
    pub fn up(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub fn down(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Default)]
pub struct Figures {
    pub connections: Figure,
    pub connections_refused: Figure,
    pub handshakes_cut: Figure,
    pub calls: Figure,
    pub calls_under_way: Figure,
    pub refused: Figure,
    pub wakes: Figure,
    pub takes: Figure,
    pub pings_cut: Figure,
    pub resets_cut: Figure,
    pub floods_cut: Figure,
    pub unread_cut: Figure,
    pub watches: Figure,
    pub reflection_streams: Figure,
}

impl Figures {
    pub fn rows(&self) -> [(&'static str, u64); 14] {
        [
            ("connections", self.connections.get()),
            ("connections_refused", self.connections_refused.get()),
            ("handshakes_cut", self.handshakes_cut.get()),
            ("calls", self.calls.get()),
            ("calls_under_way", self.calls_under_way.get()),
            ("refused", self.refused.get()),
            ("wakes", self.wakes.get()),
            ("takes", self.takes.get()),
            ("pings_cut", self.pings_cut.get()),
            ("resets_cut", self.resets_cut.get()),
            ("floods_cut", self.floods_cut.get()),
            ("unread_cut", self.unread_cut.get()),
            ("watches", self.watches.get()),
            ("reflection_streams", self.reflection_streams.get()),
        ]
    }
}

/// A place among a bounded number of things; it is free again when this is dropped.
pub struct Place {
    figures: Arc<Figures>,
    level: fn(&Figures) -> &Figure,
}

impl Place {
    /// Only the edge's own thread takes places, so looking and taking need not be one step.
    pub fn take(figures: &Arc<Figures>, level: fn(&Figures) -> &Figure, most: u64) -> Option<Self> {
        if level(figures).get() >= most {
            return None;
        }
        level(figures).up();
        Some(Self { figures: figures.clone(), level })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        (self.level)(&self.figures).down();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let figures = Arc::new(Figures::default());
        let first = Place::take(&figures, |f| &f.watches, 1);
        assert!(first.is_some());
        assert!(Place::take(&figures, |f| &f.watches, 1).is_none());
        drop(first);
        assert!(Place::take(&figures, |f| &f.watches, 1).is_some());
        assert_eq!(figures.watches.get(), 0);
    }
}
