// SPDX-License-Identifier: AGPL-3.0-only
//! What the SDK logs on this thread, which is where a test's own runtime runs all of it.

use std::fmt::Write;
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use ::tracing::field::{Field, Visit};
use ::tracing::span::{Attributes, Id, Record};
use ::tracing::subscriber::{DefaultGuard, set_global_default};
use ::tracing::{Event, Metadata, Subscriber};
use tokio::time::{sleep, timeout};

use crate::broker::PATIENCE;

/// Lines such as `WARN consume stream was lost queue="orders"`.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Keeps lines for as long as the guard lives.
    pub fn here() -> (Self, DefaultGuard) {
        // Without one for all threads, the first line of a kind, if another test's thread writes
        // it, would turn off that kind for everybody.
        static ELSEWHERE: Once = Once::new();
        ELSEWHERE.call_once(|| set_global_default(Self::default()).expect("nobody else sets it"));
        let log = Self::default();
        let guard = ::tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    pub fn lines(&self, text: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    pub async fn until(&self, text: &str) {
        let logged = async {
            while self.lines(text).is_empty() {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(PATIENCE, logged).await.unwrap_or_else(|_| panic!("{text} was not logged"));
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("fila")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_line_that_another_thread_wrote_first_is_kept_here_too() {
    fn write() {
        ::tracing::info!(target: "fila", "from two threads");
    }
    let (log, _guard) = Log::here();
    std::thread::spawn(write).join().unwrap();
    write();
    assert_eq!(log.lines("from two threads").len(), 1);
}
