// SPDX-License-Identifier: AGPL-3.0-only
//! OpenTelemetry: W3C trace context of the active span, for message headers and for gRPC metadata,
//! and the way back: from a message to the context that sent it, and to a span around its handling.
//!
//! Without the feature `otel`, and without a span that is active and recording, there is none and
//! nothing is added. The format is written here because OpenTelemetry keeps its propagator in the
//! SDK, which a library should not choose for its users.

use std::collections::HashMap;
use std::fmt::Display;

use tonic::metadata::MetadataMap;

use crate::message::Message;

#[cfg(feature = "otel")]
use opentelemetry::trace::{
    FutureExt, Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer,
};
#[cfg(feature = "otel")]
use opentelemetry::{Context, KeyValue, global};

/// Handles a message inside a consumer's span, which is active meanwhile.
///
/// The span is linked to the one that sent the message, and is its child unless a span is active
/// already. An error ends it as failed. Without the feature `otel` the message is just handled.
///
/// ```no_run
/// # async fn run(message: fila::ConsumeMessage) -> fila::Result<()> {
/// fila::tracing::processing(&message, async { message.ack().await }).await
/// # }
/// ```
pub async fn processing<T, E: Display>(
    message: &Message,
    handling: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    self::handling(std::iter::once(message), handling, |_| std::any::type_name::<E>()).await
}

/// [`processing`] of some messages of a queue in one span, which is linked to all of their senders.
/// `error_type` says what kind of failure an error is.
#[cfg_attr(not(feature = "otel"), allow(unused_variables))]
pub(crate) async fn handling<'a, T, E: Display>(
    messages: impl Iterator<Item = &'a Message>,
    handling: impl Future<Output = Result<T, E>>,
    error_type: impl Fn(&E) -> &'static str,
) -> Result<T, E> {
    #[cfg(feature = "otel")]
    let handling = traced(messages, handling, error_type);
    handling.await
}

#[cfg(feature = "otel")]
async fn traced<'a, T, E: Display>(
    messages: impl Iterator<Item = &'a Message>,
    handling: impl Future<Output = Result<T, E>>,
    error_type: impl Fn(&E) -> &'static str,
) -> Result<T, E> {
    let Some(context) = started(messages) else { return handling.await };
    let outcome = handling.with_context(context.clone()).await;
    let span = context.span();
    if let Err(error) = &outcome {
        span.set_attribute(KeyValue::new("error.type", error_type(error)));
        span.set_status(Status::error(error.to_string()));
    }
    span.end();
    outcome
}

/// The current context with the span that sent the message in it, for use with OpenTelemetry; the
/// current one as it is if the message carries none.
#[cfg(feature = "otel")]
pub fn extract(message: &Message) -> Context {
    match sender(message) {
        Some(sender) => Context::current().with_remote_span_context(sender),
        None => Context::current(),
    }
}

/// A context in which a span for the handling of messages is active; the first of them names it.
#[cfg(feature = "otel")]
fn started<'a>(mut messages: impl Iterator<Item = &'a Message>) -> Option<Context> {
    let message = messages.next()?;
    let active = Context::current();
    let parent = if active.has_active_span() { active } else { extract(message) };
    let tracer = global::tracer("fila");
    let senders = std::iter::once(message).chain(messages).filter_map(sender);
    let span = tracer
        .span_builder(format!("process {}", message.queue))
        .with_kind(SpanKind::Consumer)
        .with_links(senders.map(Link::with_context).collect())
        .with_attributes([
            KeyValue::new("messaging.system", "fila"),
            KeyValue::new("messaging.operation.name", "process"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.destination.name", message.queue.clone()),
            KeyValue::new("messaging.message.id", message.id.clone()),
            KeyValue::new("fairness_key", message.fairness_key.clone()),
        ])
        .start_with_context(&tracer, &parent);
    Some(parent.with_span(span))
}

/// The span that a message's headers name, if they do.
#[cfg(feature = "otel")]
fn sender(message: &Message) -> Option<SpanContext> {
    let mut parts = message.headers.get(TRACEPARENT)?.trim().split('-');
    let (version, trace, span) = (hex(&mut parts, 2)?, hex(&mut parts, 32)?, hex(&mut parts, 16)?);
    let flags = u8::from_str_radix(hex(&mut parts, 2)?, 16).ok()?;
    // A version after 00 may go on; ff is none.
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let state = message.headers.get(TRACESTATE).and_then(|text| text.parse::<TraceState>().ok());
    let sender = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(flags) & TraceFlags::SAMPLED,
        true,
        state.unwrap_or_default(),
    );
    sender.is_valid().then_some(sender)
}

/// The next part, if it is so many hexadecimal digits.
#[cfg(feature = "otel")]
fn hex<'a>(parts: &mut std::str::Split<'a, char>, digits: usize) -> Option<&'a str> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    parts.next().filter(|part| part.len() == digits && part.bytes().all(is_digit))
}

pub(crate) const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// `traceparent`, and `tracestate` if it is not empty.
#[derive(Clone, Default)]
pub(crate) struct Trace(Option<(String, String)>);

impl Trace {
    #[cfg(not(feature = "otel"))]
    pub(crate) fn current() -> Self {
        Self::default()
    }

    #[cfg(feature = "otel")]
    pub(crate) fn current() -> Self {
        Context::map_current(|context| {
            let span = context.span();
            let identity = span.span_context();
            if !span.is_recording() || !identity.is_valid() {
                return Self::default();
            }
            let parent = format!(
                "00-{}-{}-{:02x}",
                identity.trace_id(),
                identity.span_id(),
                identity.trace_flags().to_u8()
            );
            Self(Some((parent, identity.trace_state().header())))
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Adds the context to a message. A producer's own wins: it may continue a trace from
    /// elsewhere.
    pub(crate) fn add_to_headers(&self, headers: &mut HashMap<String, String>) {
        let Some((parent, state)) = &self.0 else { return };
        if headers.contains_key(TRACEPARENT) {
            return;
        }
        headers.insert(TRACEPARENT.to_owned(), parent.clone());
        if !state.is_empty() {
            headers.insert(TRACESTATE.to_owned(), state.clone());
        }
    }

    pub(crate) fn add_to_metadata(&self, metadata: &mut MetadataMap) {
        let Some((parent, state)) = &self.0 else { return };
        for (key, value) in [(TRACEPARENT, parent), (TRACESTATE, state)] {
            // A state that no header can carry is not worth failing the call.
            if let (false, Ok(value)) = (value.is_empty(), value.parse()) {
                metadata.insert(key, value);
            }
        }
    }
}
