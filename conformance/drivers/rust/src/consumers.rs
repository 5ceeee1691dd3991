// SPDX-License-Identifier: AGPL-3.0-only
//! One open consumer: read by `next` with a time limit, ended by `stop`, and what it handed out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fila::{ConsumeMessage, Consumer};
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout_at};

use crate::fields;
use crate::operations::Failure;

pub struct Open {
    consumer: Consumer,
    // Came after messages that had to be handed out first.
    failure: Mutex<Option<fila::Error>>,
    delivered: Mutex<HashMap<String, ConsumeMessage>>,
}

impl Open {
    pub fn new(consumer: Consumer) -> Self {
        Self { consumer, failure: Mutex::default(), delivered: Mutex::default() }
    }

    /// Up to `max` messages, fewer when the time passed or the stream ended.
    pub async fn next(&self, max: usize, wait: Duration) -> Result<Value, Failure> {
        let deadline = Instant::now() + wait;
        if let Some(error) = self.failure.lock().await.take() {
            return Err(error.into());
        }
        let mut messages = Vec::new();
        while messages.len() < max {
            let next = tokio::select! {
                biased;
                next = self.consumer.next() => next,
                () = tokio::time::sleep_until(deadline) => break,
            };
            match next {
                Some(Ok(message)) => {
                    messages.push(fields::message(&message));
                    self.delivered.lock().await.insert(message.id.clone(), message);
                }
                Some(Err(error)) if messages.is_empty() => return Err(error.into()),
                Some(Err(error)) => {
                    *self.failure.lock().await = Some(error);
                    break;
                }
                None => return Ok(page(messages, true)),
            }
        }
        Ok(page(messages, false))
    }

    /// What each of some readers got who all take from this consumer, until all of them together
    /// have `count`, or the time has passed.
    pub async fn next_shared(
        self: Arc<Self>,
        readers: usize,
        count: usize,
        wait: Duration,
    ) -> Result<Vec<Vec<String>>, Failure> {
        let (taking, mut taken_by) = mpsc::unbounded_channel();
        for reader in 0..readers {
            let (open, taking) = (Arc::clone(&self), taking.clone());
            // Left waiting at the end, until the consumer is stopped.
            tokio::spawn(async move {
                while let Some(next) = open.consumer.next().await {
                    if taking.send((reader, next)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(taking);
        let deadline = Instant::now() + wait;
        let mut taken = vec![Vec::new(); readers];
        let mut total = 0;
        while total < count {
            let Ok(Some((reader, next))) = timeout_at(deadline, taken_by.recv()).await else {
                break;
            };
            let message = next?;
            total += 1;
            taken[reader].push(message.id.clone());
            self.delivered.lock().await.insert(message.id.clone(), message);
        }
        Ok(taken)
    }

    pub async fn stop(&self) {
        self.consumer.close().await;
    }

    pub async fn delivered(&self, message_id: &str) -> Result<ConsumeMessage, Failure> {
        let delivered = self.delivered.lock().await;
        let message = delivered.get(message_id).cloned();
        message.ok_or_else(|| Failure::Crashed(format!("{message_id} was not handed out")))
    }
}

fn page(messages: Vec<Value>, ended: bool) -> Value {
    json!({"messages": messages, "ended": ended})
}
