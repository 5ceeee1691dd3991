// SPDX-License-Identifier: AGPL-3.0-only
//! One trace across a queue: the consumer's span is a child of the producer's.
//!
//! The client adds the trace context of the active span to the message's headers. The consumer
//! reads it with OpenTelemetry's own propagator. Needs the feature `otel`, and an OpenTelemetry
//! SDK.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use fila::{Client, EnqueueMessage, QueueSettings, ReceiveOptions};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{FutureExt, TraceContextExt, Tracer, TracerProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tracer = SdkTracerProvider::builder().build().tracer("fila.examples.tracing");
    let target = std::env::var("FILA_ADDR").unwrap_or_else(|_| "127.0.0.1:5555".to_owned());
    let client = Client::connect(target).await?;
    let queue = format!("tracing-{:016x}", RandomState::new().hash_one(0));
    client.create_queue(&queue, QueueSettings::default()).await?;

    let sending = Context::current_with_span(tracer.start(format!("send {queue}")));
    client.enqueue(EnqueueMessage::new(&queue, "hello")).with_context(sending.clone()).await?;

    let options = ReceiveOptions { wait: Duration::from_secs(2), ..Default::default() };
    let messages = client.receive(&queue, options).await?;
    let message = messages.first().ok_or("the message did not arrive")?;
    let parent = TraceContextPropagator::new().extract(&message.headers);
    let span = tracer.start_with_context(format!("process {queue}"), &parent);
    let processing = Context::current_with_span(span);
    message.ack().with_context(processing.clone()).await?;

    let sent = sending.span().span_context().trace_id();
    let processed = processing.span().span_context().trace_id();
    assert_eq!(sent, processed, "the trace was broken");
    println!("one trace for both sides: {sent}");
    client.delete_queue(&queue).await?;
    client.close().await;
    Ok(())
}
