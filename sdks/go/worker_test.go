// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// running is a worker that runs, and what became of it.
type running struct {
	*fila.Worker
	cancel context.CancelFunc
	ended  chan error

	lock   sync.Mutex
	events []fila.Event
}

func (r *running) record(event fila.Event) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.events = append(r.events, event)
}

// kinds is what became of a message.
func (r *running) kinds(id string) string {
	r.lock.Lock()
	defer r.lock.Unlock()
	var found []string
	for _, event := range r.events {
		if event.Message.ID == id {
			found = append(found, string(event.Kind))
		}
	}
	return strings.Join(found, " ")
}

func (r *running) waitFor(t *testing.T, id, kinds string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s is %s", id, kinds), func() bool { return r.kinds(id) == kinds })
}

func (r *running) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(patience):
		t.Fatal("the worker did not end")
		return nil
	}
}

func run(t *testing.T, made *fila.Worker, to *running) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	to.Worker, to.cancel, to.ended = made, cancel, make(chan error, 1)
	go func() { to.ended <- made.Run(ctx) }()
	t.Cleanup(func() {
		made.Stop(0)
		cancel()
	})
	return to
}

func work(
	t *testing.T, client *fila.Client, handler fila.Handler, options ...fila.WorkerOption,
) *running {
	t.Helper()
	to := &running{}
	options = append([]fila.WorkerOption{fila.WithOnEvent(to.record)}, options...)
	made, err := client.Worker("orders", handler, options...)
	check(t, err)
	return run(t, made, to)
}

func workInBatches(
	t *testing.T, client *fila.Client, size uint32, handler fila.BatchHandler,
	options ...fila.WorkerOption,
) *running {
	t.Helper()
	to := &running{}
	options = append([]fila.WorkerOption{fila.WithOnEvent(to.record)}, options...)
	made, err := client.BatchWorker("orders", size, handler, options...)
	check(t, err)
	return run(t, made, to)
}

// nacks is what was nacked, by message.
func (b *broker) nacks() map[string]*filapb.NackRequest {
	found := map[string]*filapb.NackRequest{}
	for _, call := range b.seenOf("NackBatch") {
		for _, nack := range call.request.(*filapb.NackBatchRequest).GetNacks() {
			found[nack.GetMessageId()] = nack
		}
	}
	return found
}

// sorted is for what was settled in any order.
func sorted(ids string) string {
	found := strings.Fields(ids)
	slices.Sort(found)
	return strings.Join(found, " ")
}

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

func TestWorkerRunsSoManyHandlersAtATime(t *testing.T) {
	b := startBroker(t)
	var ids []string
	for n := range 30 {
		ids = append(ids, fmt.Sprintf("m-%d", n))
	}
	b.scriptConsume(frames(frame(ids[:15]...), frame(ids[15:]...)))
	client := newClient(t, b.target)
	var now, most, all atomic.Int32
	gate := make(chan struct{})
	worker := work(t, client, func(context.Context, *fila.ConsumeMessage) error {
		count := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); count > old && !most.CompareAndSwap(old, count); old = most.Load() {
		}
		all.Add(1)
		<-gate
		return nil
	}, fila.WithConcurrency(4))
	eventually(t, "four run", func() bool { return now.Load() == 4 })
	close(gate)
	for _, id := range ids {
		worker.waitFor(t, id, "acked")
	}
	equal(t, "at a time", most.Load(), 4)
	equal(t, "handled", all.Load(), 30)
	request := b.seenOf("Consume")[0].request.(*filapb.ConsumeRequest)
	equal(t, "max in flight", request.GetMaxInFlight(), 8)
	equal(t, "frames", request.GetMaxBatch(), 8)
}

func TestWorkersConsumerFitsItsHandlers(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	one := func(context.Context, *fila.ConsumeMessage) error { return nil }
	many := func(context.Context, []*fila.ConsumeMessage) error { return nil }
	work(t, client, one)
	b.waitForCalls("Consume", 1)
	work(t, client, one, fila.WithPrefetch(3), fila.WithVisibilityTimeout(time.Minute))
	b.waitForCalls("Consume", 2)
	work(t, client, one, fila.WithPrefetch(300))
	b.waitForCalls("Consume", 3)
	workInBatches(t, client, 50, many, fila.WithConcurrency(2))
	calls := b.waitForCalls("Consume", 4)
	for i, want := range []*filapb.ConsumeRequest{
		{MaxInFlight: 20, MaxBatch: 20},
		{MaxInFlight: 10, MaxBatch: 10, VisibilityTimeoutMs: 60_000},
		{MaxInFlight: 300, MaxBatch: 32},
		{MaxInFlight: 200, MaxBatch: 50},
	} {
		want.Queue = "orders"
		if got := calls[i].request; !proto.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

func TestWorkersOptionsAreChecked(t *testing.T) {
	client := newClient(t, "127.0.0.1:5555")
	one := func(context.Context, *fila.ConsumeMessage) error { return nil }
	many := func(context.Context, []*fila.ConsumeMessage) error { return nil }
	for want, option := range map[string]fila.WorkerOption{
		"concurrency must be positive":                   fila.WithConcurrency(0),
		"grace must not be negative, got -1ns":           fila.WithGrace(-1),
		"handler timeout must not be negative, got -1ns": fila.WithHandlerTimeout(-1),
		"visibility timeout must not be negative":        fila.WithVisibilityTimeout(-1),
		"batch middleware needs a batch worker":          fila.WithBatchMiddleware(nil),
	} {
		_, err := client.Worker("orders", one, option)
		failure := wantKind(t, err, fila.ErrInvalidArgument)
		if !strings.Contains(failure.Message, want) {
			t.Fatalf("%q does not say %q", failure.Message, want)
		}
	}
	_, err := client.BatchWorker("orders", 5, many, fila.WithMiddleware(nil))
	wantKind(t, err, fila.ErrInvalidArgument)
	_, err = client.BatchWorker("orders", 0, many)
	wantKind(t, err, fila.ErrInvalidArgument)
	_, err = client.Worker("orders", nil)
	wantKind(t, err, fila.ErrInvalidArgument)
	_, err = client.BatchWorker("orders", 5, nil)
	wantKind(t, err, fila.ErrInvalidArgument)
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
	}, fila.WithConcurrency(1), fila.WithHandlerTimeout(50*time.Millisecond))
	worker.waitFor(t, "m-1", "timed_out nacked")
	equal(t, "started", started.Load(), 1)
	close(gate)
	worker.waitFor(t, "m-2", "acked")
	nack := b.nacks()["m-1"]
	equal(t, "text", nack.GetError(), "handler timed out after 0.05 s")
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

type keyOfTest struct{}

func TestEndOfTheContextLetsHandlersFinish(t *testing.T) {
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1", "m-2", "m-3")))
	client := newClient(t, b.target)
	gate, begun := make(chan struct{}), make(chan struct{})
	made, err := client.Worker("orders", func(ctx context.Context, m *fila.ConsumeMessage) error {
		close(begun)
		<-gate
		if ctx.Value(keyOfTest{}) != "kept" {
			t.Error("the values of the context are lost")
		}
		return ctx.Err()
	}, fila.WithConcurrency(1))
	check(t, err)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), keyOfTest{}, "kept"))
	ended := make(chan error, 1)
	go func() { ended <- made.Run(ctx) }()
	<-begun
	cancel()
	b.waitForCalls("NackBatch", 1)
	equal(t, "given back", released(t, b), "m-2 m-3")
	close(gate)
	check(t, <-ended)
	equal(t, "acked", b.acked(), "m-1")
	wantKind(t, made.Run(t.Context()), fila.ErrInvalidArgument)
}

func TestEndOfTheGraceGivesBackWhatStillRuns(t *testing.T) {
	for name, stop := range map[string]func(*running){
		"by the context": func(r *running) { r.cancel() },
		"by a stop":      func(r *running) { r.Stop(time.Millisecond) },
		"by a stop at once": func(r *running) {
			r.Stop(time.Hour)
			r.Stop(0)
			r.Stop(time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBroker(t)
			b.scriptConsume(frames(frame("m-1", "m-2", "m-3")))
			client := newClient(t, b.target)
			gate, begun := make(chan struct{}), make(chan struct{}, 2)
			defer close(gate)
			worker := work(t, client, func(ctx context.Context, m *fila.ConsumeMessage) error {
				begun <- struct{}{}
				<-ctx.Done()
				if m.ID == "m-1" {
					return ctx.Err()
				}
				<-gate // It does not heed its context.
				return nil
			}, fila.WithConcurrency(2), fila.WithGrace(time.Millisecond))
			<-begun
			<-begun
			stop(worker)
			check(t, worker.end(t))
			equal(t, "given back", sorted(released(t, b)), "m-1 m-2 m-3")
			equal(t, "events", worker.kinds("m-1"), "given_back")
			equal(t, "events", worker.kinds("m-2"), "given_back")
			equal(t, "events", worker.kinds("m-3"), "")
		})
	}
}

func TestStopBeforeTheRunTakesNothing(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	handler := func(context.Context, *fila.ConsumeMessage) error { return nil }
	stopped, err := client.Worker("orders", handler)
	check(t, err)
	stopped.Stop(time.Hour)
	check(t, stopped.Run(t.Context()))
	late, err := client.Worker("orders", handler)
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	check(t, late.Run(ctx))
	equal(t, "streams", len(b.seenOf("Consume")), 0)
}

func TestWorkerEndsWithWhatEndsItsConsumerAfterItsHandlers(t *testing.T) {
	b := startBroker(t)
	gate := make(chan struct{})
	b.scriptConsume(func(stream grpc.ServerStream, r *filapb.ConsumeRequest) error {
		if err := stream.SendMsg(frame("m-1")); err != nil {
			return err
		}
		<-gate
		return refuseStream(codes.NotFound, "the queue is gone", "QUEUE_NOT_FOUND")(stream, r)
	})
	client := newClient(t, b.target)
	finish := make(chan struct{})
	worker := work(t, client, func(context.Context, *fila.ConsumeMessage) error {
		close(gate)
		<-finish
		return nil
	})
	<-gate
	select {
	case <-worker.ended:
		t.Fatal("it did not wait for the handler")
	case <-time.After(100 * time.Millisecond):
	}
	close(finish)
	wantKind(t, worker.end(t), fila.ErrQueueNotFound)
	equal(t, "acked", b.acked(), "m-1")
}

func TestWorkerWaitsForABrokerThatIsNotThereYet(t *testing.T) {
	b := startBroker(t)
	b.stop()
	client := newClient(t, b.target, quick)
	worker := work(t, client, func(context.Context, *fila.ConsumeMessage) error { return nil })
	startBrokerAt(t, b.target, frames(frame("m-1")))
	worker.waitFor(t, "m-1", "acked")
}

func TestWorkerSettlesAgainWhileTheBrokerIsAway(t *testing.T) {
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1")))
	b.script("AckBatch", failing(2, codes.Unavailable, judging(notFound)))
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

func TestMiddlewareIsAroundTheHandler(t *testing.T) {
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1")))
	client := newClient(t, b.target)
	var lock sync.Mutex
	var order []string
	named := func(name string) fila.Middleware {
		return func(next fila.Handler) fila.Handler {
			return func(ctx context.Context, m *fila.ConsumeMessage) error {
				lock.Lock()
				order = append(order, name+" "+m.ID)
				lock.Unlock()
				return fmt.Errorf("%s: %w", name, next(ctx, m))
			}
		}
	}
	worker := work(t, client, func(context.Context, *fila.ConsumeMessage) error {
		return errors.New("no")
	}, fila.WithMiddleware(named("outer"), named("middle")), fila.WithMiddleware(named("inner")))
	worker.waitFor(t, "m-1", "nacked")
	equal(t, "text", b.nacks()["m-1"].GetError(), "outer: middle: inner: no")
	equal(t, "order", strings.Join(order, ", "), "outer m-1, middle m-1, inner m-1")
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

func TestWorkersOfOneClientShareTheWork(t *testing.T) {
	b := startBroker(t)
	var streams atomic.Int32
	b.scriptConsume(func(stream grpc.ServerStream, r *filapb.ConsumeRequest) error {
		n := streams.Add(1)
		return frames(frame(fmt.Sprintf("a-%d", n), fmt.Sprintf("b-%d", n)))(stream, r)
	})
	client := newClient(t, b.target)
	handler := func(context.Context, *fila.ConsumeMessage) error { return nil }
	first, second := work(t, client, handler), work(t, client, handler)
	for _, id := range []string{"a-1", "b-1", "a-2", "b-2"} {
		eventually(t, id+" is acked by one of them", func() bool {
			return first.kinds(id)+second.kinds(id) == "acked"
		})
	}
	first.Stop(0)
	check(t, first.end(t))
	check(t, client.Close())
	check(t, second.end(t))
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
