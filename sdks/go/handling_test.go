// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

type brokenError struct{ text string }

func (e *brokenError) Error() string { return e.text }

func TestOutcomesOfHandlers(t *testing.T) {
	long := strings.Repeat("ä", 3000)
	errOwn := errors.New("unlucky")
	for name, each := range map[string]struct {
		handle func(context.Context, *fila.ConsumeMessage) error
		kinds  string
		// nack is nil where the message is acked.
		nack *filapb.NackRequest
		err  error
	}{
		"returns": {
			handle: func(context.Context, *fila.ConsumeMessage) error { return nil },
			kinds:  "acked",
		},
		"fails": {
			handle: func(context.Context, *fila.ConsumeMessage) error { return errOwn },
			kinds:  "nacked",
			nack:   &filapb.NackRequest{Error: "unlucky"},
			err:    errOwn,
		},
		"puts off": {
			handle: func(context.Context, *fila.ConsumeMessage) error {
				return fmt.Errorf("later: %w", &fila.Backpressure{
					RetryAfter: time.Second, ThrottleKey: "mail", Reason: "busy",
				})
			},
			kinds: "put_off",
			nack: &filapb.NackRequest{
				Error: "busy", RetryAfterMs: proto.Uint64(1000), ThrottleKey: "mail",
			},
		},
		"puts off into the past": {
			handle: func(context.Context, *fila.ConsumeMessage) error {
				return &fila.Backpressure{RetryAfter: -time.Second}
			},
			kinds: "put_off",
			nack:  &filapb.NackRequest{RetryAfterMs: proto.Uint64(0)},
		},
		"is hopeless": {
			handle: func(context.Context, *fila.ConsumeMessage) error {
				return fmt.Errorf("no: %w", &fila.DeadLetter{Reason: "malformed"})
			},
			kinds: "dead_lettered",
			nack:  &filapb.NackRequest{Error: "malformed", DeadLetter: true},
		},
		"panics": {
			handle: func(context.Context, *fila.ConsumeMessage) error { panic("boom") },
			kinds:  "nacked",
			nack:   &filapb.NackRequest{Error: "panic: boom"},
		},
		"ends its goroutine": {
			handle: func(context.Context, *fila.ConsumeMessage) error {
				runtime.Goexit()
				return nil
			},
			kinds: "nacked",
			nack:  &filapb.NackRequest{Error: "the handler ended its goroutine"},
		},
		"says too much": {
			handle: func(context.Context, *fila.ConsumeMessage) error {
				return errors.New("\xff" + long)
			},
			kinds: "nacked",
			nack:  &filapb.NackRequest{Error: "\ufffd" + long[:4092]},
		},
		"fails with a nil pointer": {
			handle: func(context.Context, *fila.ConsumeMessage) error {
				var nothing *brokenError
				return nothing
			},
			kinds: "nacked",
			nack:  &filapb.NackRequest{Error: "<nil>"},
		},
		"acks by itself": {
			handle: func(ctx context.Context, m *fila.ConsumeMessage) error {
				return errors.Join(m.Ack(ctx), errOwn)
			},
		},
		"nacks by itself": {
			handle: func(ctx context.Context, m *fila.ConsumeMessage) error {
				return m.Nack(ctx, "mine")
			},
			nack: &filapb.NackRequest{Error: "mine"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBroker(t)
			b.scriptConsume(frames(frame("m-1"), frame("m-2")))
			client := newClient(t, b.target)
			var count atomic.Int32
			worker := work(t, client, func(ctx context.Context, m *fila.ConsumeMessage) error {
				count.Add(1)
				return each.handle(ctx, m)
			}, fila.WithConcurrency(1))
			if each.kinds != "" {
				worker.waitFor(t, "m-1", each.kinds)
				worker.waitFor(t, "m-2", each.kinds)
			}
			eventually(t, "both are handled", func() bool { return count.Load() == 2 })
			worker.cancel()
			check(t, worker.end(t))
			equal(t, "events", worker.kinds("m-1"), each.kinds)
			if each.nack == nil {
				equal(t, "acked", sorted(b.acked()), "m-1 m-2")
				equal(t, "nacked", len(b.nacks()), 0)
				return
			}
			equal(t, "acked", b.acked(), "")
			got := b.nacks()["m-1"]
			each.nack.Queue, each.nack.MessageId = "orders", "m-1"
			each.nack.LeaseToken = "token-of-m-1"
			if !proto.Equal(got, each.nack) {
				t.Fatalf("got %v, want %v", got, each.nack)
			}
			if len(got.GetError()) > 4096 || !utf8.ValidString(got.GetError()) {
				t.Fatal("the text cannot be kept")
			}
			if each.err != nil && !errors.Is(worker.events[0].Err, each.err) {
				t.Fatalf("the event has the error %v", worker.events[0].Err)
			}
		})
	}
}

func TestLeasesAreExtendedWhileHandlersRun(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.settleGrants(nil)
	b.scriptConsume(frames(leased("t", shortLease, "m-1", "m-2", "m-3")))
	client := newClient(t, b.target)
	gate := make(chan struct{})
	worker := work(t, client, func(_ context.Context, m *fila.ConsumeMessage) error {
		if m.ID != "m-1" {
			<-gate
		}
		return nil
	}, fila.WithConcurrency(2))
	worker.waitFor(t, "m-1", "acked")
	b.waitForCalls("SettleGrants", 2)
	for _, each := range b.asked() {
		equal(t, "extension", each, "t -m-1 4000")
	}
	close(gate)
	// What waited behind a slow handler was kept, too.
	worker.waitFor(t, "m-2", "acked")
	worker.waitFor(t, "m-3", "acked")
}

func TestHandlerThatIsTooSlowHasFailedAndKeepsItsPlace(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1", "m-2")))
	client := newClient(t, b.target)
	gate := make(chan struct{})
	var started atomic.Int32
	worker := work(t, client, func(ctx context.Context, m *fila.ConsumeMessage) error {
		started.Add(1)
		if m.ID == "m-2" {
			return nil
		}
		<-gate
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Error("the context goes on")
		}
		return &fila.DeadLetter{Reason: "nobody asks"}
		// Even on a busy machine a handler that just returns does so within this time.
	}, fila.WithConcurrency(1), fila.WithHandlerTimeout(3*time.Second))
	worker.waitFor(t, "m-1", "timed_out nacked")
	equal(t, "started", started.Load(), 1)
	close(gate)
	worker.waitFor(t, "m-2", "acked")
	nack := b.nacks()["m-1"]
	equal(t, "text", nack.GetError(), "handler timed out after 3 s")
	equal(t, "a dead letter", nack.GetDeadLetter(), false)
	equal(t, "events", worker.kinds("m-1"), "timed_out nacked")
}

func TestHandlerThatHeedsItsTimeoutFailsOnce(t *testing.T) {
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1")))
	client := newClient(t, b.target)
	worker := work(t, client, func(ctx context.Context, _ *fila.ConsumeMessage) error {
		<-ctx.Done()
		return ctx.Err()
	}, fila.WithHandlerTimeout(10*time.Millisecond))
	worker.waitFor(t, "m-1", "timed_out nacked")
	worker.cancel()
	check(t, worker.end(t))
	equal(t, "nacks", len(b.seenOf("NackBatch")), 1)
	equal(t, "text", b.nacks()["m-1"].GetError(), "handler timed out after 0.01 s")
}

func TestWorkerSettlesAgainWhileTheBrokerIsAway(t *testing.T) {
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1")))
	b.script("AckBatch", failing(2, judging(notFound)))
	client := newClient(t, b.target, quick)
	worker := work(t, client, func(context.Context, *fila.ConsumeMessage) error { return nil })
	worker.waitFor(t, "m-1", "acked")
}

func TestSettlementThatFailsIsTold(t *testing.T) {
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1"), frame("m-2")))
	b.script("AckBatch", judging(expired))
	log, logger := debugLog()
	client := newClient(t, b.target, logger)
	worker := work(t, client, func(context.Context, *fila.ConsumeMessage) error { return nil })
	worker.waitFor(t, "m-1", "settle_failed")
	worker.waitFor(t, "m-2", "settle_failed")
	wantKind(t, worker.events[0].Err, fila.ErrLeaseExpired)
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "m-2") {
		t.Fatalf("the log does not say it: %s", log)
	}
}

func TestEventsThatPanicChangeNothing(t *testing.T) {
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1"), frame("m-2")))
	log, logger := debugLog()
	client := newClient(t, b.target, logger)
	made, err := client.Worker("orders",
		func(context.Context, *fila.ConsumeMessage) error { return nil },
		fila.WithConcurrency(1), fila.WithOnEvent(func(fila.Event) { panic("no event, please") }))
	check(t, err)
	worker := run(t, made, &running{})
	b.waitForCalls("AckBatch", 2)
	worker.cancel()
	check(t, worker.end(t))
	equal(t, "log", strings.Count(log.String(), "no event, please"), 2)
}

func TestBatchesAreOfWhatIsThereAndSettledByOneCall(t *testing.T) {
	b := startBroker(t)
	b.settleGrants(nil)
	more := make(chan struct{})
	b.scriptConsume(func(stream grpc.ServerStream, r *filapb.ConsumeRequest) error {
		err := stream.SendMsg(leased("t1", time.Hour, "m-1", "m-2", "m-3"))
		<-more
		return errors.Join(err, frames(leased("t2", time.Hour, "m-4", "m-5", "m-6"))(stream, r))
	})
	client := newClient(t, b.target)
	var lock sync.Mutex
	var batches []string
	through := func(next fila.BatchHandler) fila.BatchHandler {
		return func(ctx context.Context, messages []*fila.ConsumeMessage) error {
			return next(ctx, messages)
		}
	}
	worker := workInBatches(t, client, 5,
		func(ctx context.Context, messages []*fila.ConsumeMessage) error {
			var ids []string
			for _, message := range messages {
				ids = append(ids, message.ID)
			}
			lock.Lock()
			batches = append(batches, strings.Join(ids, " "))
			lock.Unlock()
			if ids[0] != "m-4" {
				return nil
			}
			return errors.Join(messages[1].Ack(ctx), errors.New("no"))
		}, fila.WithConcurrency(1), fila.WithBatchMiddleware(through))
	worker.waitFor(t, "m-3", "acked")
	equal(t, "as a whole frame", b.settlements(), "t1:3")
	close(more)
	worker.waitFor(t, "m-6", "nacked")
	worker.waitFor(t, "m-4", "nacked")
	equal(t, "events", worker.kinds("m-5"), "")
	equal(t, "batches", strings.Join(batches, ", "), "m-1 m-2 m-3, m-4 m-5 m-6")
	equal(t, "acked by the handler", b.acked(), "m-5")
	equal(t, "requests", len(b.seenOf("NackBatch")), 1)
	equal(t, "nacked", len(b.nacks()), 2)
}

func TestBatchIsNoLargerThanItMayBe(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.scriptConsume(frames(frame("m-1", "m-2", "m-3", "m-4", "m-5")))
	sizes := make(chan int, 5)
	worker := workInBatches(t, client, 2,
		func(_ context.Context, messages []*fila.ConsumeMessage) error {
			sizes <- len(messages)
			return &fila.Backpressure{RetryAfter: time.Second}
		}, fila.WithConcurrency(1))
	for _, want := range []int{2, 2, 1} {
		equal(t, "size", <-sizes, want)
	}
	worker.waitFor(t, "m-5", "put_off")
	equal(t, "retry after", b.nacks()["m-5"].GetRetryAfterMs(), 1000)
}

func TestEachHandlingRunsInASpan(t *testing.T) {
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1", "m-2")))
	client := newClient(t, b.target)
	r := record(t)
	worker := workInBatches(t, client, 2,
		func(ctx context.Context, _ []*fila.ConsumeMessage) error {
			if trace.SpanFromContext(ctx) != trace.Span(r.spans[0]) {
				t.Error("the span of the first message is not active")
			}
			return errors.New("no")
		}, fila.WithConcurrency(1))
	worker.waitFor(t, "m-2", "nacked")
	equal(t, "spans", len(r.spans), 2)
	for i, span := range r.spans {
		equal(t, "name", span.name, "process orders")
		equal(t, "message", span.attributes["messaging.message.id"], fmt.Sprintf("m-%d", i+1))
		equal(t, "status", span.status, otelcodes.Error)
		equal(t, "ended", span.ended, 1)
	}
	// A trace would have taken it out of the pipeline.
	equal(t, "the settlement is piped", b.seenOf("NackBatch")[0].isPiped, true)
}
