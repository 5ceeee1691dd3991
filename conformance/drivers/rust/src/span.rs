// SPDX-License-Identifier: AGPL-3.0-only
//! A span with the ids that the runner chose; recording, as a sampled one is. And a tracer that
//! keeps what it is told about the spans that the SDK makes.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use opentelemetry::trace::{
    Span, SpanBuilder, SpanContext, SpanId, Status, TraceContextExt, TraceFlags, TraceId,
    TraceState, Tracer, TracerProvider,
};
use opentelemetry::{Context, InstrumentationScope, KeyValue, global};
use serde_json::{Map, Value, json};

#[derive(Debug)]
pub struct Chosen(SpanContext);

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

/// What was told about the latest span.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Value>>);

impl Recorder {
    /// One whose tracer all programs share.
    pub fn install() -> Self {
        let recorder = Self::default();
        global::set_tracer_provider(recorder.clone());
        recorder
    }

    pub fn told(&self) -> Value {
        self.0.lock().unwrap().clone()
    }
}

impl TracerProvider for Recorder {
    type Tracer = Self;

    fn tracer_with_scope(&self, _: InstrumentationScope) -> Self {
        self.clone()
    }
}

impl Tracer for Recorder {
    type Span = Chosen;

    fn build_with_context(&self, builder: SpanBuilder, parent: &Context) -> Chosen {
        let links = builder.links.iter().flatten().map(|link| identity(&link.span_context));
        let attributes = builder.attributes.iter().flatten();
        let attributes: Map<String, Value> =
            attributes.map(|it| (it.key.to_string(), json!(it.value.to_string()))).collect();
        *self.0.lock().unwrap() = json!({
            "name": builder.name,
            "kind": builder.span_kind.map(|kind| format!("{kind:?}").to_lowercase()),
            "parent": identity(parent.span().span_context()),
            "links": links.collect::<Vec<_>>(),
            "attributes": attributes,
        });
        Chosen(SpanContext::empty_context())
    }
}

fn identity(span: &SpanContext) -> String {
    if !span.is_valid() {
        return String::new();
    }
    format!("{}-{}", span.trace_id(), span.span_id())
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
