// SPDX-License-Identifier: AGPL-3.0-only
//! Answers that their callers have not read. Each of them is as large as one frame may be, and a
//! peer may have a thousand calls: so the bytes of all are counted, and when they are too many the
//! connection that has the most of them is cut. Who reads what it asked for is never that one.
//!
//! Frames of streams are not counted: Python writes the next one when the last was taken.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use tokio::sync::Notify;

/// A connection, as what waits for its peer to read.
#[derive(Default)]
pub struct Reader {
    pub id: u64, // from 1
    waiting: Cell<usize>,
    is_cut: Cell<bool>,
    told: Notify,
}

impl Reader {
    /// Wait until the connection is to be cut.
    pub async fn cut(&self) {
        self.told.notified().await;
    }
}

pub struct Unread {
    most: usize,
    all: Cell<usize>,
    count: Cell<u64>,
    readers: RefCell<Vec<Weak<Reader>>>,
}

/// An answer that waits until this is dropped.
pub struct Waiting {
    unread: Rc<Unread>,
    reader: Rc<Reader>,
    size: usize,
}

impl Unread {
    pub fn new(most: usize) -> Rc<Self> {
        Rc::new(Self { most, all: Cell::new(0), count: Cell::new(0), readers: RefCell::default() })
    }

    pub fn reader(&self) -> Rc<Reader> {
        let id = self.count.get() + 1;
        self.count.set(id);
        let reader = Rc::new(Reader { id, ..Reader::default() });
        let mut readers = self.readers.borrow_mut();
        if readers.len() == readers.capacity() {
            readers.retain(|reader| reader.strong_count() > 0);
        }
        readers.push(Rc::downgrade(&reader));
        reader
    }

    /// Count an answer, and cut whoever reads least if it is one too many.
    pub fn put(self: &Rc<Self>, reader: &Rc<Reader>, size: usize) -> Option<Waiting> {
        if reader.is_cut.get() {
            return None;
        }
        reader.waiting.set(reader.waiting.get() + size);
        self.all.set(self.all.get() + size);
        if self.all.get() > self.most {
            self.cut_one();
        }
        Some(Waiting { unread: self.clone(), reader: reader.clone(), size })
    }

    fn cut_one(&self) {
        let readers = self.readers.borrow();
        let worst = readers.iter().filter_map(Weak::upgrade).max_by_key(|it| it.waiting.get());
        if let Some(reader) = worst {
            reader.is_cut.set(true);
            self.all.set(self.all.get() - reader.waiting.replace(0));
            reader.told.notify_one();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.reader.is_cut.get() {
            self.reader.waiting.set(self.reader.waiting.get() - self.size);
            self.unread.all.set(self.unread.all.get() - self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_most_is_cut_and_the_others_go_on() {
        let unread = Unread::new(100);
        let (good, bad) = (unread.reader(), unread.reader());
        let first = unread.put(&good, 40);
        let kept: Vec<_> = (0..6).map(|_| unread.put(&bad, 10)).collect();
        assert!(!good.is_cut.get() && !bad.is_cut.get());
        let last = unread.put(&bad, 1);
        assert!(!good.is_cut.get() && bad.is_cut.get());
        assert_eq!(unread.all.get(), 40);
        assert!(unread.put(&bad, 1000).is_none());
        drop((kept, last));
        assert_eq!(unread.all.get(), 40);
        drop(first);
        assert_eq!((unread.all.get(), good.waiting.get()), (0, 0));
    }

    #[test]
    fn what_is_read_does_not_count() {
        let unread = Unread::new(100);
        let reader = unread.reader();
        for _ in 0..1000 {
            assert!(unread.put(&reader, 100).is_some());
        }
        assert!(!reader.is_cut.get());
    }

    #[test]
    fn connections_that_ended_are_forgotten() {
        let unread = Unread::new(100);
        for _ in 0..1000 {
            drop(unread.reader());
        }
        assert!(unread.readers.borrow().len() < 10);
    }
}
