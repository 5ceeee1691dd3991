// SPDX-License-Identifier: AGPL-3.0-only
//! One open consumer: read by `next` with a time limit, ended by `stop`, and what it handed out.

use std::collections::HashMap;
use std::time::Duration;

use fila::{ConsumeMessage, Consumer};
use serde_json::{Value, json};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::fields;
use crate::operations::Failure;

pub struct Open {
    reading: Mutex<Reading>,
    is_stopped: watch::Sender<bool>,
    delivered: Mutex<HashMap<String, ConsumeMessage>>,
}

struct Reading {
    consumer: Option<Consumer>,
    // Came after messages that had to be handed out first.
    failure: Option<fila::Error>,
}

impl Open {
    pub fn new(consumer: Consumer) -> Self {
        Self {
            reading: Mutex::new(Reading { consumer: Some(consumer), failure: None }),
            is_stopped: watch::Sender::new(false),
            delivered: Mutex::default(),
        }
    }

    /// Up to `max` messages, fewer when the time passed or the stream ended.
    pub async fn next(&self, max: usize, wait: Duration) -> Result<Value, Failure> {
        let deadline = Instant::now() + wait;
        let mut is_stopped = self.is_stopped.subscribe();
        let mut reading = self.reading.lock().await;
        if let Some(error) = reading.failure.take() {
            return Err(error.into());
        }
        let mut messages = Vec::new();
        while messages.len() < max {
            let Some(consumer) = &mut reading.consumer else { return Ok(page(messages, true)) };
            let next = tokio::select! {
                biased;
                next = consumer.next() => next,
                _ = is_stopped.wait_for(|is_stopped| *is_stopped) => None,
                () = tokio::time::sleep_until(deadline) => break,
            };
            match next {
                Some(Ok(message)) => {
                    messages.push(fields::message(&message));
                    self.delivered.lock().await.insert(message.id.clone(), message);
                }
                Some(Err(error)) if messages.is_empty() => return Err(error.into()),
                Some(Err(error)) => {
                    reading.failure = Some(error);
                    break;
                }
                None => return Ok(page(messages, true)),
            }
        }
        Ok(page(messages, false))
    }

    pub async fn stop(&self) {
        self.is_stopped.send_replace(true);
        let consumer = self.reading.lock().await.consumer.take();
        if let Some(consumer) = consumer {
            consumer.close().await;
        }
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
