// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"strings"
	"testing"

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
	check(t, client.DeleteQueue(traced(t), "orders"))
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
