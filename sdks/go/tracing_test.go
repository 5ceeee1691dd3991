// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

const expectedTraceparent = "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01"

// activeSpan is one that a tracer would have started.
type activeSpan struct {
	noop.Span
	isRecording bool
}

func (s activeSpan) IsRecording() bool { return s.isRecording }

func (s activeSpan) SpanContext() trace.SpanContext {
	state, _ := trace.ParseTraceState("vendor=1")
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID:    trace.TraceID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
		SpanID:     trace.SpanID{1, 2, 3, 4, 5, 6, 7, 8},
		TraceFlags: trace.FlagsSampled,
		TraceState: state,
	})
}

func traced(t *testing.T) context.Context {
	t.Helper()
	return trace.ContextWithSpan(t.Context(), activeSpan{isRecording: true})
}

func sentHeaders(b *broker, call int) map[string]string {
	request := b.seenOf("EnqueueBatch")[call].request.(*filapb.EnqueueBatchRequest)
	return request.GetMessages()[0].GetHeaders()
}

func TestTraceGoesIntoHeadersAndMetadata(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	own := map[string]string{"tenant": "acme"}
	_, err := client.Enqueue(traced(t), "orders", own, nil)
	check(t, err)
	_, err = client.EnqueueMany(traced(t), []fila.EnqueueMessage{{Queue: "orders"}})
	check(t, err)
	for call, count := range []int{3, 2} {
		headers := sentHeaders(b, call)
		equal(t, "headers", len(headers), count)
		equal(t, "traceparent", headers["traceparent"], expectedTraceparent)
		equal(t, "tracestate", headers["tracestate"], "vendor=1")
		md := b.seenOf("EnqueueBatch")[call].metadata
		equal(t, "metadata", strings.Join(md.Get("traceparent"), ","), expectedTraceparent)
		equal(t, "metadata", strings.Join(md.Get("tracestate"), ","), "vendor=1")
	}
	equal(t, "the caller's own map", len(own), 1)
}

func TestTraceGoesWithEveryKindOfCall(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("DeleteQueue", replyWith(&filapb.DeleteQueueResponse{}))
	check(t, deleteQueue(traced(t), client, "orders"))
	check(t, client.Ack(traced(t), "orders", "m", ""))
	consumer, err := client.Consume(traced(t), "orders")
	check(t, err)
	b.waitForCalls("Consume", 1)
	check(t, consumer.Close())
	for _, method := range []string{"DeleteQueue", "AckBatch", "Consume"} {
		md := b.seenOf(method)[0].metadata
		equal(t, method, strings.Join(md.Get("traceparent"), ","), expectedTraceparent)
	}
}

func TestCallersOwnTraceparentWins(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	_, err := client.Enqueue(traced(t), "orders", map[string]string{"traceparent": "mine"}, nil)
	check(t, err)
	headers := sentHeaders(b, 0)
	equal(t, "traceparent", headers["traceparent"], "mine")
	equal(t, "headers", len(headers), 1)
}

func TestNothingIsAddedWithoutARecordingSpan(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	for call, ctx := range []context.Context{
		t.Context(), trace.ContextWithSpan(t.Context(), activeSpan{}),
	} {
		_, err := client.Enqueue(ctx, "orders", nil, nil)
		check(t, err)
		equal(t, "headers", len(sentHeaders(b, call)), 0)
		md := b.seenOf("EnqueueBatch")[call].metadata
		equal(t, "metadata", len(md.Get("traceparent"))+len(md.Get("tracestate")), 0)
	}
}

// recorder is a tracer that keeps what it was told; the SDK is no dependency of this module.
type recorder struct {
	noop.TracerProvider
	spans []*recordedSpan
}

type recordedSpan struct {
	activeSpan
	name       string
	parent     trace.SpanContext
	config     trace.SpanConfig
	attributes map[attribute.Key]string
	status     codes.Code
	ended      int
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return recordingTracer{of: r}
}

type recordingTracer struct {
	noop.Tracer
	of *recorder
}

func (r recordingTracer) Start(
	ctx context.Context, name string, options ...trace.SpanStartOption,
) (context.Context, trace.Span) {
	span := &recordedSpan{
		activeSpan: activeSpan{isRecording: true},
		name:       name,
		parent:     trace.SpanContextFromContext(ctx),
		config:     trace.NewSpanStartConfig(options...),
		attributes: map[attribute.Key]string{},
	}
	span.SetAttributes(span.config.Attributes()...)
	r.of.spans = append(r.of.spans, span)
	return trace.ContextWithSpan(ctx, span), span
}

func (s *recordedSpan) SetAttributes(given ...attribute.KeyValue) {
	for _, it := range given {
		s.attributes[it.Key] = it.Value.AsString()
	}
}

func (s *recordedSpan) SetStatus(code codes.Code, _ string) { s.status = code }
func (s *recordedSpan) End(...trace.SpanEndOption)          { s.ended++ }

func record(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{}
	otel.SetTracerProvider(r)
	t.Cleanup(func() { otel.SetTracerProvider(noop.NewTracerProvider()) })
	return r
}

const sender = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func received(headers map[string]string) *fila.ConsumeMessage {
	return &fila.ConsumeMessage{Message: fila.Message{
		ID: "m-1", Queue: "orders", FairnessKey: "acme", Headers: headers,
	}}
}

func traceparentOf(span trace.SpanContext) string {
	return fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags())
}

func TestExtractGivesTheSendersContext(t *testing.T) {
	headers := map[string]string{"traceparent": sender, "tracestate": "vendor=1"}
	found := trace.SpanContextFromContext(fila.Extract(traced(t), received(headers)))
	equal(t, "traceparent", traceparentOf(found), sender)
	equal(t, "tracestate", found.TraceState().String(), "vendor=1")
	equal(t, "is remote", found.IsRemote(), true)
	for _, headers := range []map[string]string{nil, {"traceparent": "nonsense"}} {
		found := trace.SpanContextFromContext(fila.Extract(traced(t), received(headers)))
		equal(t, "the active span", traceparentOf(found), expectedTraceparent)
	}
}

func TestProcessingIsAConsumersSpanBelowItsSender(t *testing.T) {
	r := record(t)
	ctx, end := fila.StartProcessing(t.Context(), received(map[string]string{"traceparent": sender}))
	equal(t, "spans", len(r.spans), 1)
	span := r.spans[0]
	equal(t, "the active span", trace.SpanFromContext(ctx) == trace.Span(span), true)
	equal(t, "ended", span.ended, 0)
	end(nil)
	equal(t, "ended", span.ended, 1)
	equal(t, "name", span.name, "process orders")
	equal(t, "kind", span.config.SpanKind(), trace.SpanKindConsumer)
	equal(t, "parent", traceparentOf(span.parent), sender)
	equal(t, "links", len(span.config.Links()), 1)
	equal(t, "link", traceparentOf(span.config.Links()[0].SpanContext), sender)
	equal(t, "status", span.status, codes.Unset)
	expected := map[attribute.Key]string{
		"messaging.system":           "fila",
		"messaging.operation.name":   "process",
		"messaging.operation.type":   "process",
		"messaging.destination.name": "orders",
		"messaging.message.id":       "m-1",
		"fairness_key":               "acme",
	}
	equal(t, "attributes", maps.Equal(span.attributes, expected), true)
}

func TestProcessingInsideASpanIsBelowThatOne(t *testing.T) {
	r := record(t)
	_, end := fila.StartProcessing(traced(t), received(map[string]string{"traceparent": sender}))
	end(nil)
	equal(t, "parent", traceparentOf(r.spans[0].parent), expectedTraceparent)
	equal(t, "link", traceparentOf(r.spans[0].config.Links()[0].SpanContext), sender)
}

func TestProcessingWithoutASenderBeginsATrace(t *testing.T) {
	r := record(t)
	for at, headers := range []map[string]string{nil, {"traceparent": "nonsense"}} {
		_, end := fila.StartProcessing(t.Context(), received(headers))
		end(nil)
		equal(t, "has a parent", r.spans[at].parent.IsValid(), false)
		equal(t, "links", len(r.spans[at].config.Links()), 0)
	}
}

func TestProcessingThatFailsSaysSo(t *testing.T) {
	r := record(t)
	_, end := fila.StartProcessing(t.Context(), received(nil))
	end(&fila.Error{})
	equal(t, "status", r.spans[0].status, codes.Error)
	equal(t, "error.type", r.spans[0].attributes["error.type"], "*fila.Error")
}

func TestProcessingWithoutATracerJustRuns(t *testing.T) {
	ctx, end := fila.StartProcessing(t.Context(), received(nil))
	equal(t, "recording", trace.SpanFromContext(ctx).IsRecording(), false)
	end(nil)
}
