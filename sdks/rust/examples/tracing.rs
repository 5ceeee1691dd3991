// SPDX-License-Identifier: AGPL-3.0-only
//! One trace across a queue: producer, broker, consumer.
//!
//! The client adds the trace context of the active span to the message's headers and to its calls,
//! so that the broker's spans are below it (see `[telemetry]` in the broker's configuration).
//! `processing` is the consumer's span. Needs the feature `otel`, and an OpenTelemetry SDK.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use fila::tracing::processing;
use fila::{Client, EnqueueMessage, QueueSettings, ReceiveOptions};
use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer};
use opentelemetry::{Context, global};
use opentelemetry_sdk::trace::SdkTracerProvider;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    global::set_tracer_provider(SdkTracerProvider::builder().build());
    let tracer = global::tracer("fila.examples.tracing");
    let target = std::env::var("FILA_ADDR").unwrap_or_else(|_| "127.0.0.1:5555".to_owned());
    let client = Client::connect(target).await?;
    let queue = format!("tracing-{:016x}", RandomState::new().hash_one(0));
    client.create_queue(&queue, QueueSettings::default()).await?;

    let sending = Context::current_with_span(tracer.start(format!("send {queue}")));
    client.enqueue(EnqueueMessage::new(&queue, "hello")).with_context(sending.clone()).await?;

    let options = ReceiveOptions { wait: Duration::from_secs(2), ..Default::default() };
    let messages = client.receive(&queue, options).await?;
    let message = messages.first().ok_or("the message did not arrive")?;
    let processed = processing(message, async {
        message.ack().await?;
        Ok::<_, fila::Error>(Context::current().span().span_context().trace_id())
    })
    .await?;

    let sent = sending.span().span_context().trace_id();
    assert_eq!(sent, processed, "the trace was broken");
    println!("one trace for both sides: {sent}");
    client.delete_queue(&queue).await?;
    client.close().await;
    Ok(())
}
