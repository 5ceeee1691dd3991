// SPDX-License-Identifier: AGPL-3.0-only
//! W3C trace context of the active span, for message headers and for gRPC metadata.
//!
//! Without the feature `otel`, and without a span that is active and recording, there is none and
//! nothing is added. The format is written here because OpenTelemetry keeps its propagator in the
//! SDK, which a library should not choose for its users.

use std::collections::HashMap;

use tonic::metadata::MetadataMap;

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
        use opentelemetry::Context;
        use opentelemetry::trace::TraceContextExt;

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
