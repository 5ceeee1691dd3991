// SPDX-License-Identifier: AGPL-3.0-only
//! A span with the ids that the runner chose; recording, as a sampled one is.

use std::borrow::Cow;
use std::time::SystemTime;

use opentelemetry::trace::{
    Span, SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Context, KeyValue};

struct Chosen(SpanContext);

/// A context in which the span of `traceparent` is active; none where that is not one.
pub fn context(traceparent: &str, tracestate: Option<&str>) -> Option<Context> {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let [_, trace_id, span_id, flags] = parts[..] else { return None };
    let identity = SpanContext::new(
        TraceId::from_hex(trace_id).ok()?,
        SpanId::from_hex(span_id).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        false,
        tracestate.unwrap_or_default().parse::<TraceState>().ok()?,
    );
    Some(Context::current_with_span(Chosen(identity)))
}

impl Span for Chosen {
    fn add_event_with_timestamp<T>(&mut self, _: T, _: SystemTime, _: Vec<KeyValue>)
    where
        T: Into<Cow<'static, str>>,
    {
    }

    fn span_context(&self) -> &SpanContext {
        &self.0
    }

    fn is_recording(&self) -> bool {
        true
    }

    fn set_attribute(&mut self, _: KeyValue) {}

    fn set_status(&mut self, _: Status) {}

    fn update_name<T>(&mut self, _: T)
    where
        T: Into<Cow<'static, str>>,
    {
    }

    fn add_link(&mut self, _: SpanContext, _: Vec<KeyValue>) {}

    fn end_with_timestamp(&mut self, _: SystemTime) {}
}
