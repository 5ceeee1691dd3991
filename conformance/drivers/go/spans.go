// SPDX-License-Identifier: AGPL-3.0-only

// Spans: one that is active because the runner says so, and those that the SDK makes.

package main

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	fila "github.com/faiscadev/fila/sdks/go"
)

// span is the one of the request, as if it had been started in this process.
type span struct {
	noop.Span
	context trace.SpanContext
}

func (s span) SpanContext() trace.SpanContext { return s.context }
func (s span) IsRecording() bool              { return true }

func (d *driver) withSpan(ctx context.Context, r *request) (object, error) {
	carrier := propagation.MapCarrier{"traceparent": r.Traceparent, "tracestate": r.Tracestate}
	remote := propagation.TraceContext{}.Extract(ctx, carrier)
	active := span{context: trace.SpanContextFromContext(remote)}
	return d.run(trace.ContextWithSpan(ctx, active), r.Then)
}

// recorder is a tracer that keeps what it was told about its one span.
type recorder struct {
	noop.Tracer
	told object
}

type provider struct {
	noop.TracerProvider
	tracer *recorder
}

func (p provider) Tracer(string, ...trace.TracerOption) trace.Tracer { return p.tracer }

func (r *recorder) Start(
	ctx context.Context, name string, options ...trace.SpanStartOption,
) (context.Context, trace.Span) {
	config := trace.NewSpanStartConfig(options...)
	links, attributes := []string{}, map[string]string{}
	for _, link := range config.Links() {
		links = append(links, identity(link.SpanContext))
	}
	for _, it := range config.Attributes() {
		attributes[string(it.Key)] = it.Value.AsString()
	}
	r.told = object{
		"name": name, "kind": config.SpanKind().String(), "links": links, "attributes": attributes,
		"parent": identity(trace.SpanContextFromContext(ctx)),
	}
	return ctx, noop.Span{}
}

func identity(span trace.SpanContext) string {
	if !span.IsValid() {
		return ""
	}
	return span.TraceID().String() + "-" + span.SpanID().String()
}

func (d *driver) process(ctx context.Context, r *request) (object, error) {
	message, err := d.delivered(r)
	if err != nil {
		return nil, err
	}
	tracer := &recorder{}
	otel.SetTracerProvider(provider{tracer: tracer})
	_, end := fila.StartProcessing(ctx, message)
	end(nil)
	return tracer.told, nil
}
