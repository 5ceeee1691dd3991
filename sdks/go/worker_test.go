// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
		for old := most.Load(); count > old; old = most.Load() {
			if most.CompareAndSwap(old, count) {
				break
			}
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

type keyOfTest struct{}

func TestEndOfTheContextLetsHandlersFinish(t *testing.T) {
	b := startBroker(t)
	b.scriptConsume(frames(frame("m-1", "m-2", "m-3")))
	client := newClient(t, b.target)
	gate, begun := make(chan struct{}), make(chan struct{})
	made, err := client.Worker("orders", func(ctx context.Context, _ *fila.ConsumeMessage) error {
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
	address := freeAddress(t)
	client := newClient(t, address, quick)
	worker := work(t, client, func(context.Context, *fila.ConsumeMessage) error { return nil })
	startBrokerAt(t, address, frames(frame("m-1")))
	worker.waitFor(t, "m-1", "acked")
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
