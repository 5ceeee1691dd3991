// SPDX-License-Identifier: AGPL-3.0-only

// W3C trace context of the active span, for message headers and for gRPC metadata. It needs the
// OpenTelemetry API and no SDK: without one no span ever records, and nothing is added.

package fila

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const traceparent = "traceparent"

// traceOf returns traceparent, and tracestate if there is one, of the recording span; nil without.
func traceOf(ctx context.Context) map[string]string {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return nil
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier
}
