// SPDX-License-Identifier: AGPL-3.0-only

// W3C trace context of the active span, for message headers and gRPC metadata, and the way back:
// from a message to the context that sent it, and to a span around its handling. It needs the
// OpenTelemetry API and no SDK: without one no span ever records, and nothing is added.

package fila

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
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

// Extract returns the context with the span that sent the message in it, for use with
// OpenTelemetry; the context as it is if the message carries none.
func Extract(ctx context.Context, message *ConsumeMessage) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(message.Headers))
}

// StartProcessing starts a consumer's span for the handling of a message, and returns a context
// in which it is active and what ends it: as failed, if the error is not nil. It is linked to the
// span that sent the message, and is its child unless the context has a span already.
func StartProcessing(
	ctx context.Context, message *ConsumeMessage,
) (_ context.Context, end func(err error)) {
	sender := trace.SpanContextFromContext(Extract(context.Background(), message))
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			attribute.String("messaging.system", "fila"),
			attribute.String("messaging.operation.name", "process"),
			attribute.String("messaging.operation.type", "process"),
			attribute.String("messaging.destination.name", message.Queue),
			attribute.String("messaging.message.id", message.ID),
			attribute.String("fairness_key", message.FairnessKey),
		),
	}
	if sender.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: sender}))
	}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = Extract(ctx, message)
	}
	ctx, span := otel.Tracer("fila").Start(ctx, "process "+message.Queue, options...)
	return ctx, func(err error) {
		if err != nil {
			span.RecordError(err)
			span.SetAttributes(attribute.String("error.type", fmt.Sprintf("%T", err)))
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}
