// SPDX-License-Identifier: AGPL-3.0-only
//! One worker: its handler does what a message says, and what it did is kept for `handled`.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fila::{Client, ConsumeMessage, HandlerError, StopHandle};
use serde_json::{Value, json};
use tokio::sync::{Notify, OnceCell};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::fields::{ms, number, owned, required, short, text};
use crate::operations::Failure;

pub struct Running {
    log: Arc<Log>,
    stop: StopHandle,
    task: tokio::sync::Mutex<Option<JoinHandle<fila::Result<()>>>>,
    ended: OnceCell<fila::Result<()>>,
}

impl Running {
    pub fn start(client: &Client, given: &Value) -> Result<Self, Failure> {
        let log = Arc::new(Log::default());
        let queue = required(given, "queue")?;
        let own = Arc::clone(&log);
        let mut worker = match number(given, "batch_size") {
            None => client.worker(queue, move |message| handle(Arc::clone(&own), vec![message])),
            Some(size) => {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                client.batch_worker(queue, size, move |batch| handle(Arc::clone(&own), batch))
            }
        };
        if let Some(concurrency) = short(given, "concurrency") {
            worker = worker.concurrency(concurrency);
        }
        if let Some(prefetch) = short(given, "prefetch") {
            worker = worker.prefetch(prefetch);
        }
        if let Some(visibility_timeout) = ms(given, "visibility_timeout_ms") {
            worker = worker.visibility_timeout(visibility_timeout);
        }
        if let Some(handler_timeout) = ms(given, "handler_timeout_ms") {
            worker = worker.handler_timeout(handler_timeout);
        }
        if let Some(grace) = ms(given, "grace_ms") {
            worker = worker.grace(grace);
        }
        let stop = worker.stop_handle();
        let task = tokio::sync::Mutex::new(Some(tokio::spawn(worker.run())));
        Ok(Self { log, stop, task, ended: OnceCell::new() })
    }

    pub async fn handled(&self, count: usize, wait: Duration) -> Value {
        let enough = async {
            loop {
                let mut more = pin!(self.log.more.notified());
                more.as_mut().enable();
                if self.log.entries.lock().unwrap().handled.len() >= count {
                    return;
                }
                more.await;
            }
        };
        // Whatever there is by then is the answer.
        let _ = timeout(wait, enough).await;
        let entries = self.log.entries.lock().unwrap();
        json!({
            "handled": entries.handled,
            "running": entries.running,
            "most_running": entries.most_running,
            "batches": entries.batches,
        })
    }

    pub async fn stop(&self) -> Result<(), Failure> {
        self.stop.stop();
        let ended = self.ended.get_or_try_init(|| async {
            let task = self.task.lock().await.take();
            let task = task.ok_or_else(|| Failure::Crashed("the worker is gone".to_owned()))?;
            task.await.map_err(|error| Failure::Crashed(format!("the worker crashed: {error}")))
        });
        Ok(ended.await?.clone()?)
    }
}

#[derive(Default)]
struct Log {
    entries: Mutex<Entries>,
    more: Notify,
}

#[derive(Default)]
struct Entries {
    handled: Vec<Value>,
    running: usize,
    most_running: usize,
    batches: Vec<usize>,
}

/// A handling under way; it ends with this, however that comes about.
struct Handling {
    log: Arc<Log>,
    shown: Vec<Value>,
}

impl Handling {
    fn begin(log: Arc<Log>, batch: &[ConsumeMessage]) -> Self {
        {
            let mut entries = log.entries.lock().unwrap();
            entries.running += 1;
            entries.most_running = entries.most_running.max(entries.running);
            entries.batches.push(batch.len());
        }
        let shown = batch.iter().map(|message| {
            json!({
                "message_id": message.id,
                "payload": STANDARD.encode(&message.payload),
                "attempt_count": message.attempt_count,
            })
        });
        Self { log, shown: shown.collect() }
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        let mut entries = self.log.entries.lock().unwrap();
        entries.running -= 1;
        entries.handled.append(&mut self.shown);
        self.log.more.notify_waiters();
    }
}

async fn handle(log: Arc<Log>, batch: Vec<ConsumeMessage>) -> Result<(), HandlerError> {
    let _handling = Handling::begin(log, &batch);
    let Some(first) = batch.first() else { return Ok(()) };
    let told: Value = match &*first.payload {
        b"" => Value::Null,
        payload => serde_json::from_slice(payload)?,
    };
    if let Some(pause) = ms(&told, "sleep_ms") {
        sleep(pause).await;
    }
    let reason = || text(&told, "text").unwrap_or_default();
    match text(&told, "then").unwrap_or("return") {
        "return" => Ok(()),
        "fail" => Err(reason().into()),
        "dead_letter" => Err(HandlerError::dead_letter(reason())),
        "backpressure" => Err(HandlerError::Backpressure {
            retry_after: ms(&told, "retry_after_ms").unwrap_or_default(),
            throttle_key: owned(&told, "throttle_key"),
            reason: owned(&told, "text"),
        }),
        "ack" => Ok(first.ack().await?),
        "exit" => std::process::exit(9),
        other => Err(format!("a handler cannot {other}").into()),
    }
}
