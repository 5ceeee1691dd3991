// SPDX-License-Identifier: AGPL-3.0-only
//! Every request of the protocol as calls of `fila`'s public API.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use fila::{Backoff, Client, ConsumeMessage, ConsumeOptions, Nack, ReceiveOptions, TlsOptions};
use futures_util::future::join_all;
use opentelemetry::trace::FutureExt;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::administration;
use crate::consumers::Open;
use crate::fields::{self, ms, number, owned, required, short, text};
use crate::span;
use crate::workers::Running;

/// Why a request has no result.
pub enum Failure {
    Sdk(fila::Error),
    Cancelled,
    Unsupported(String),
    Crashed(String),
}

impl From<fila::Error> for Failure {
    fn from(error: fila::Error) -> Self {
        Self::Sdk(error)
    }
}

pub type Outcome = Result<Value, Failure>;

/// Clients, consumers and workers by the names that the runner gave them.
#[derive(Default)]
pub struct Operations {
    clients: Mutex<HashMap<String, Client>>,
    consumers: Mutex<HashMap<String, Arc<Open>>>,
    workers: Mutex<HashMap<String, Arc<Running>>>,
}

impl Operations {
    /// What a request gives. Boxed, because `with_span` holds another request.
    pub fn run<'a>(
        self: &'a Arc<Self>,
        given: &'a Value,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>> {
        Box::pin(async move {
            match text(given, "op").unwrap_or_default() {
                "hello" => Ok(hello()),
                "connect" => self.connect(given).await,
                "close" => {
                    self.client(given).await?.close().await;
                    Ok(json!({}))
                }
                "ping" => {
                    let took = self.client(given).await?.ping().await?;
                    Ok(json!({"ms": took.as_secs_f64() * 1_000.0}))
                }
                "flush" => done(self.client(given).await?.flush().await),
                "enqueue" => self.enqueue(given).await,
                "enqueue_many" => self.enqueue_many(given).await,
                "enqueue_concurrently" => self.enqueue_concurrently(given).await,
                "consume" => self.consume(given).await,
                "next" => self.next(given).await,
                "next_shared" => self.next_shared(given).await,
                "stop" => {
                    self.consumer(given).await?.stop().await;
                    Ok(json!({}))
                }
                "work" => self.work(given).await,
                "handled" => self.handled(given).await,
                "stop_worker" => {
                    self.worker(given).await?.stop().await?;
                    Ok(json!({}))
                }
                "receive" => self.receive(given).await,
                "ack" => self.ack(given).await,
                "nack" => self.nack(given).await,
                "extend" => self.extend(given).await,
                "ack_concurrently" => self.ack_concurrently(given).await,
                "ack_many" => self.ack_many(given).await,
                "nack_many" => self.nack_many(given).await,
                "extend_many" => self.extend_many(given).await,
                "ack_grant" => self.ack_grant(given).await,
                "nack_grant" => self.nack_grant(given).await,
                "extend_grant" => self.extend_grant(given).await,
                "settle" => self.settle(given).await,
                "process" => self.process(given).await,
                "with_span" => self.with_span(given).await,
                _ => administration::administer(self, given).await,
            }
        })
    }

    /// The client that a request names, with the deadline that it asks for.
    pub async fn client(&self, given: &Value) -> Result<Client, Failure> {
        let name = required(given, "client")?;
        let client = self.clients.lock().await.get(name).cloned();
        let client = client.ok_or_else(|| Failure::Crashed(format!("no client {name}")))?;
        Ok(match ms(given, "timeout_ms") {
            Some(timeout) => client.with_timeout(timeout),
            None => client,
        })
    }

    async fn consumer(&self, given: &Value) -> Result<Arc<Open>, Failure> {
        let name = required(given, "consumer")?;
        let consumer = self.consumers.lock().await.get(name).cloned();
        consumer.ok_or_else(|| Failure::Crashed(format!("no consumer {name}")))
    }

    async fn worker(&self, given: &Value) -> Result<Arc<Running>, Failure> {
        let name = required(given, "worker")?;
        let worker = self.workers.lock().await.get(name).cloned();
        worker.ok_or_else(|| Failure::Crashed(format!("no worker {name}")))
    }

    async fn connect(&self, given: &Value) -> Outcome {
        let mut builder = Client::builder().target(required(given, "target")?);
        if let Some(api_key) = text(given, "api_key") {
            builder = builder.api_key(api_key);
        }
        let tls = &given["tls"];
        if tls.is_object() {
            builder = builder.tls(TlsOptions {
                ca: text(tls, "ca_file").map(Into::into),
                cert: text(tls, "cert_file").map(Into::into),
                key: text(tls, "key_file").map(Into::into),
                server_name: owned(tls, "server_name"),
            });
        }
        let options = &given["options"];
        if let Some(timeout) = ms(options, "timeout_ms") {
            builder = builder.timeout(timeout);
        }
        let mut backoff = Backoff::default();
        if let Some(initial) = ms(options, "backoff_initial_ms") {
            backoff.initial = initial;
        }
        if let Some(maximum) = ms(options, "backoff_maximum_ms") {
            backoff.maximum = maximum;
        }
        let client = builder.backoff(backoff).connect_lazy()?;
        let name = required(given, "client")?.to_owned();
        self.clients.lock().await.insert(name, client);
        Ok(json!({}))
    }

    async fn enqueue(&self, given: &Value) -> Outcome {
        let client = self.client(given).await?;
        let message_id = client.enqueue(fields::enqueue_message(given)?).await?;
        Ok(json!({"message_id": message_id}))
    }

    async fn enqueue_many(&self, given: &Value) -> Outcome {
        let messages = fields::list(given, "messages").iter().map(fields::enqueue_message);
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let results = self.client(given).await?.enqueue_many(messages).await?;
        let shown = results.into_iter().map(|result| match result {
            Ok(stored) => {
                json!({"message_id": stored.message_id, "duplicate": stored.duplicate})
            }
            Err(error) => json!({"error": fields::error(&error)}),
        });
        Ok(json!({"results": shown.collect::<Vec<_>>()}))
    }

    async fn enqueue_concurrently(&self, given: &Value) -> Outcome {
        let client = self.client(given).await?;
        let message = fields::enqueue_message(given)?;
        let count = number(given, "count").unwrap_or_default();
        let stored = join_all((0..count).map(|_| client.enqueue(message.clone()))).await;
        let message_ids = stored.into_iter().collect::<fila::Result<Vec<_>>>()?;
        Ok(json!({"message_ids": message_ids}))
    }

    async fn consume(&self, given: &Value) -> Outcome {
        let mut options = ConsumeOptions {
            visibility_timeout: ms(given, "visibility_timeout_ms"),
            ..ConsumeOptions::default()
        };
        if let Some(max_in_flight) = short(given, "max_in_flight") {
            options.max_in_flight = max_in_flight;
        }
        if let Some(batch_size) = short(given, "batch_size") {
            options.batch_size = batch_size;
        }
        if let Some(extend_leases) = given["extend_leases"].as_bool() {
            options.extend_leases = extend_leases;
        }
        let queue = required(given, "queue")?;
        let consumer = self.client(given).await?.consume_with(queue, options).await?;
        let name = required(given, "consumer")?.to_owned();
        self.consumers.lock().await.insert(name, Arc::new(Open::new(consumer)));
        Ok(json!({}))
    }

    async fn next(&self, given: &Value) -> Outcome {
        let max = number(given, "max").unwrap_or_default();
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        self.consumer(given).await?.next(max, ms(given, "wait_ms").unwrap_or_default()).await
    }

    async fn next_shared(&self, given: &Value) -> Outcome {
        let size = |name| usize::try_from(number(given, name).unwrap_or_default());
        let (Ok(readers), Ok(count)) = (size("readers"), size("count")) else {
            return Err(Failure::Crashed("readers and count are too large".to_owned()));
        };
        let wait = ms(given, "wait_ms").unwrap_or_default();
        let taken = self.consumer(given).await?.next_shared(readers, count, wait).await?;
        Ok(json!({"taken": taken}))
    }

    async fn work(&self, given: &Value) -> Outcome {
        let worker = Running::start(&self.client(given).await?, given)?;
        let name = required(given, "worker")?.to_owned();
        self.workers.lock().await.insert(name, Arc::new(worker));
        Ok(json!({}))
    }

    async fn handled(&self, given: &Value) -> Outcome {
        let count = number(given, "count").unwrap_or_default();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let wait = ms(given, "wait_ms").unwrap_or_default();
        Ok(self.worker(given).await?.handled(count, wait).await)
    }

    async fn receive(&self, given: &Value) -> Outcome {
        let mut options = ReceiveOptions {
            visibility_timeout: ms(given, "visibility_timeout_ms"),
            ..ReceiveOptions::default()
        };
        if let Some(max_messages) = short(given, "max_messages") {
            options.max_messages = max_messages;
        }
        if let Some(wait) = ms(given, "wait_ms") {
            options.wait = wait;
        }
        let queue = required(given, "queue")?;
        let messages = self.client(given).await?.receive(queue, options).await?;
        let shown = messages.iter().map(|message| fields::message(message));
        Ok(json!({"messages": shown.collect::<Vec<_>>()}))
    }

    async fn ack(&self, given: &Value) -> Outcome {
        let (queue, message_id) = (required(given, "queue")?, required(given, "message_id")?);
        let token = text(given, "lease_token");
        done(self.client(given).await?.ack(queue, message_id, token).await)
    }

    async fn nack(&self, given: &Value) -> Outcome {
        let (queue, message_id) = (required(given, "queue")?, required(given, "message_id")?);
        let token = text(given, "lease_token");
        done(self.client(given).await?.nack(queue, message_id, token, nack_of(given)).await)
    }

    async fn ack_grant(&self, given: &Value) -> Outcome {
        let (queue, token) = (required(given, "queue")?, required(given, "lease_token")?);
        let except = ids(given, "except_message_ids");
        let count = self.client(given).await?.ack_grant(queue, token, &except).await?;
        Ok(json!({"messages": count}))
    }

    async fn nack_grant(&self, given: &Value) -> Outcome {
        let (queue, token) = (required(given, "queue")?, required(given, "lease_token")?);
        let (nack, except) = (nack_of(given), ids(given, "except_message_ids"));
        let count = self.client(given).await?.nack_grant(queue, token, nack, &except).await?;
        Ok(json!({"messages": count}))
    }

    async fn extend_grant(&self, given: &Value) -> Outcome {
        let (queue, token) = (required(given, "queue")?, required(given, "lease_token")?);
        let (lease, except) = (ms(given, "ms"), ids(given, "except_message_ids"));
        let end = self.client(given).await?.extend_grant(queue, token, lease, &except).await?;
        Ok(json!({"lease_expires_at_ms": fields::epoch_ms(end)}))
    }

    async fn ack_many(&self, given: &Value) -> Outcome {
        let messages = self.delivered(given).await?;
        Ok(settled(&self.client(given).await?.ack_many(&messages).await?))
    }

    async fn nack_many(&self, given: &Value) -> Outcome {
        let messages = self.delivered(given).await?;
        let error = text(given, "error").unwrap_or_default();
        Ok(settled(&self.client(given).await?.nack_many(&messages, error).await?))
    }

    async fn extend_many(&self, given: &Value) -> Outcome {
        let messages = self.delivered(given).await?;
        let ends = self.client(given).await?.extend_many(&messages, ms(given, "ms")).await?;
        let shown = ends.into_iter().map(|end| match end {
            Ok(end) => json!({"lease_expires_at_ms": fields::epoch_ms(end)}),
            Err(error) => json!({"error": fields::error(&error)}),
        });
        Ok(json!({"results": shown.collect::<Vec<_>>()}))
    }

    /// The messages that a request names.
    async fn delivered(&self, given: &Value) -> Result<Vec<ConsumeMessage>, Failure> {
        let consumer = self.consumer(given).await?;
        let mut messages = Vec::new();
        for id in ids(given, "message_ids") {
            messages.push(consumer.delivered(&id).await?);
        }
        Ok(messages)
    }

    async fn extend(&self, given: &Value) -> Outcome {
        let (queue, message_id) = (required(given, "queue")?, required(given, "message_id")?);
        let token = text(given, "lease_token");
        let end =
            self.client(given).await?.extend(queue, message_id, token, ms(given, "ms")).await?;
        Ok(json!({"lease_expires_at_ms": fields::epoch_ms(end)}))
    }

    async fn ack_concurrently(&self, given: &Value) -> Outcome {
        let client = self.client(given).await?;
        let queue = required(given, "queue")?;
        let acks = fields::list(given, "acks").iter().map(|ack| {
            let message_id = text(ack, "message_id").unwrap_or_default();
            client.ack(queue, message_id, text(ack, "lease_token"))
        });
        Ok(settled(&join_all(acks).await))
    }

    async fn settle(&self, given: &Value) -> Outcome {
        let message = self.consumer(given).await?.delivered(required(given, "message_id")?).await?;
        match text(given, "how").unwrap_or_default() {
            "ack" => done(message.ack().await),
            "nack" => done(message.nack(text(given, "error").unwrap_or_default()).await),
            _ => {
                let end = message.extend(ms(given, "ms")).await?;
                Ok(json!({"lease_expires_at_ms": fields::epoch_ms(end)}))
            }
        }
    }

    async fn process(&self, given: &Value) -> Outcome {
        let message = self.consumer(given).await?.delivered(required(given, "message_id")?).await?;
        let recorder = span::Recorder::install();
        fila::tracing::processing(&message, async { Ok::<_, fila::Error>(()) }).await?;
        Ok(recorder.told())
    }

    async fn with_span(self: &Arc<Self>, given: &Value) -> Outcome {
        let traceparent = required(given, "traceparent")?;
        let context = span::context(traceparent, text(given, "tracestate"))
            .ok_or_else(|| Failure::Crashed(format!("{traceparent} is no traceparent")))?;
        self.run(&given["then"]).with_context(context).await
    }
}

fn hello() -> Value {
    json!({
        "sdk": "fila-rust",
        "sdk_version": fila::VERSION,
        "language": "rust",
        "features": [
            "tracing",
            "mtls",
            "admin",
            "nack_many",
            "around",
            "error_fields",
            "shared_consumer",
            "sub_millisecond",
        ],
    })
}

fn settled(outcomes: &[fila::Result<()>]) -> Value {
    let shown = outcomes.iter().map(|outcome| outcome.as_ref().err().map(fields::error));
    json!({"results": shown.collect::<Vec<_>>()})
}

pub fn done(outcome: fila::Result<()>) -> Outcome {
    outcome?;
    Ok(json!({}))
}

fn nack_of(given: &Value) -> Nack {
    Nack {
        retry_after: ms(given, "retry_after_ms"),
        throttle_key: owned(given, "throttle_key"),
        dead_letter: given["dead_letter"].as_bool().unwrap_or_default(),
        ..text(given, "error").map(Nack::from).unwrap_or_default()
    }
}

fn ids(given: &Value, name: &str) -> Vec<String> {
    fields::list(given, name).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
