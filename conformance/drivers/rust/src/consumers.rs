// SPDX-License-Identifier: AGPL-3.0-only
//! One open consumer: read by `next` with a time limit, ended by `stop`, and what it handed out.

use std::collections::HashMap;
use std::time::Duration;

use fila::{ConsumeMessage, Consumer};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

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
