// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

func flushing(client *fila.Client) <-chan error {
	done := make(chan error, 1)
	go func() { done <- client.Flush(context.Background()) }()
	return done
}

func TestFlushWaitsForWhatBeganBeforeItAndForNothingElse(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	check(t, client.Flush(t.Context()))
	first, second := make(chan struct{}), make(chan struct{})
	b.script("EnqueueBatch", held(first, b.store))
	early := enqueueing(t.Context(), client, "early")
	b.waitForCalls("EnqueueBatch", 1)
	done := flushing(client)
	eventually(t, "the flush has begun", func() bool { return fila.Flushed(client) == 1 })
	b.script("EnqueueBatch", held(second, b.store))
	late := enqueueing(t.Context(), client, "late")
	b.waitForCalls("EnqueueBatch", 2)
	select {
	case <-done:
		t.Fatal("it did not wait")
	default:
	}
	close(first)
	check(t, <-done)
	check(t, (<-early).err)
	select {
	case <-late:
		t.Fatal("the later call is over, so nothing was shown")
	default:
	}
	close(second)
	check(t, (<-late).err)
}

func TestFlushWaitsForEveryKindOfCall(t *testing.T) {
	for method, call := range map[string]func(*fila.Client) error{
		"AckBatch":    func(c *fila.Client) error { return acking.settle(c, "t") },
		"NackBatch":   func(c *fila.Client) error { return nacking.settle(c, "t") },
		"ExtendLease": func(c *fila.Client) error { return extending.settle(c, "t") },
		"SettleGrants": func(c *fila.Client) error {
			_, err := c.AckGrant(context.Background(), "orders", "t")
			return err
		},
		"EnqueueBatch": func(c *fila.Client) error {
			_, err := c.EnqueueMany(context.Background(), []fila.EnqueueMessage{{Queue: "orders"}})
			return err
		},
	} {
		b := startBroker(t)
		b.settleGrants(nil)
		b.script("ExtendLease", judging(none))
		client := newClient(t, b.target)
		gate := make(chan struct{})
		b.lock.Lock()
		b.scripts[method] = held(gate, b.scripts[method])
		b.lock.Unlock()
		var calls sync.WaitGroup
		calls.Go(func() { _ = call(client) })
		b.waitForCalls(method, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		failure := wantKind(t, client.Flush(ctx), fila.ErrDeadlineExceeded)
		if !errors.Is(failure, context.DeadlineExceeded) {
			t.Fatalf("%s: the context's error is not in the chain", method)
		}
		cancel()
		close(gate)
		check(t, client.Flush(t.Context()))
		calls.Wait()
	}
}

func TestFlushDoesNotAskForTheAnswer(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, quick)
	gate := make(chan struct{})
	away := refuse(codes.Unavailable, "away", "")
	b.script("AckBatch", held(gate, failing(2, refuse(codes.Internal, "no", ""))))
	b.script("NackBatch", held(gate, away))
	var calls sync.WaitGroup
	calls.Go(func() { wantKind(t, acking.settle(client, "t"), fila.ErrInternal) })
	calls.Go(func() { wantKind(t, nacking.settle(client, ""), fila.ErrUnavailable) })
	b.waitForCalls("AckBatch", 1)
	b.waitForCalls("NackBatch", 1)
	done := flushing(client)
	eventually(t, "the flush has begun", func() bool { return fila.Flushed(client) == 1 })
	close(gate)
	check(t, <-done)
	equal(t, "acks, with those that were sent again", len(b.seenOf("AckBatch")), 3)
	calls.Wait()
}

func TestFlushThatIsCancelledSaysSo(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithCloseTimeout(0))
	gate := make(chan struct{})
	defer close(gate)
	occupy(t, b, client, gate)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantKind(t, client.Flush(ctx), fila.ErrCanceled)
}

func TestCloseLetsWhatWasPromisedBeAnswered(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithCloseTimeout(patience))
	gate := make(chan struct{})
	early := append(occupy(t, b, client, gate), waiting(t.Context(), t, client, "waits")...)
	closing := make(chan error, 1)
	go func() { closing <- client.Close() }()
	eventually(t, "new calls are refused", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		return errors.Is(client.Ack(ctx, "orders", "m", "t"), fila.ErrClientClosed)
	})
	_, err := client.Receive(t.Context(), "orders", 1)
	wantKind(t, err, fila.ErrClientClosed)
	_, err = client.Consume(t.Context(), "orders")
	wantKind(t, err, fila.ErrClientClosed)
	select {
	case <-closing:
		t.Fatal("it did not wait")
	default:
	}
	close(gate)
	for _, done := range early {
		check(t, (<-done).err)
	}
	check(t, <-closing)
}

func TestCloseCutsOffWhatIsNotAnsweredInTime(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithCloseTimeout(50*time.Millisecond))
	gate := make(chan struct{})
	defer close(gate)
	early := occupy(t, b, client, gate)
	done := flushing(client)
	eventually(t, "the flush has begun", func() bool { return fila.Flushed(client) == 1 })
	check(t, client.Close())
	for _, each := range early {
		wantKind(t, (<-each).err, fila.ErrClientClosed)
	}
	check(t, <-done)
}

func TestWhatWaitsToBeSentIsBounded(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithMaxBufferedBytes(1000))
	gate := make(chan struct{})
	calls := occupy(t, b, client, gate)
	// What is under way counts no more.
	large := strings.Repeat("x", 600)
	calls = append(calls, waiting(t.Context(), t, client, large)...)
	ctx := newExpiring(t)
	late := enqueueing(ctx, client, large)
	eventually(t, "it is outside", func() bool { return fila.OutsideTheRoom(client) == 1 })
	ctx.expire()
	failure := wantKind(t, (<-late).err, fila.ErrDeadlineExceeded)
	if !strings.Contains(failure.Message, "not sent") {
		t.Fatalf("the text does not say that nothing was sent: %s", failure.Message)
	}
	equal(t, "queue", failure.Queue, "orders")

	// Whoever comes later does not overtake, even if there would be room.
	calls = append(calls, enqueueing(t.Context(), client, large))
	eventually(t, "it is outside", func() bool { return fila.OutsideTheRoom(client) == 1 })
	acks := make(chan error, 1)
	go func() { acks <- client.Ack(context.Background(), "orders", "m", "t") }()
	eventually(t, "both are outside", func() bool { return fila.OutsideTheRoom(client) == 2 })
	equal(t, "acks", len(b.seenOf("AckBatch")), 0)
	close(gate)
	for _, done := range calls {
		check(t, (<-done).err)
	}
	check(t, <-acks)
	equal(t, "messages sent", len(b.enqueued()), 4)
}

func (b *broker) enqueued() (found []*filapb.EnqueueRequest) {
	for _, call := range b.seenOf("EnqueueBatch") {
		found = append(found, call.request.(*filapb.EnqueueBatchRequest).GetMessages()...)
	}
	return found
}

func TestWhatIsLargerThanTheRoomHasItAlone(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithMaxBufferedBytes(10))
	gate := make(chan struct{})
	calls := occupy(t, b, client, gate)
	large := strings.Repeat("x", 100)
	calls = append(calls, waiting(t.Context(), t, client, large)...)
	calls = append(calls, enqueueing(t.Context(), client, large))
	eventually(t, "it is outside", func() bool { return fila.OutsideTheRoom(client) == 1 })
	close(gate)
	for _, done := range calls {
		check(t, (<-done).err)
	}
}

func TestRoomIsGivenBackHoweverACallEnds(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithMaxBufferedBytes(1000))
	gate := make(chan struct{})
	calls := occupy(t, b, client, gate)
	large := strings.Repeat("x", 600)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		gone := waiting(ctx, t, client, large)
		outside := enqueueing(ctx, client, large)
		eventually(t, "it is outside", func() bool { return fila.OutsideTheRoom(client) == 1 })
		cancel()
		wantKind(t, (<-gone[0]).err, fila.ErrCanceled)
		wantKind(t, (<-outside).err, fila.ErrCanceled)
		bad := map[string]string{"\xff": large}
		_, err := client.Enqueue(t.Context(), "orders", bad, nil)
		wantKind(t, err, fila.ErrInvalidArgument)
	}
	calls = append(calls, waiting(t.Context(), t, client, large)...)
	close(gate)
	for _, done := range calls {
		check(t, (<-done).err)
	}
}

func TestCloseEndsCallsThatWaitForRoom(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, fila.WithMaxBufferedBytes(10), fila.WithCloseTimeout(0))
	gate := make(chan struct{})
	defer close(gate)
	calls := occupy(t, b, client, gate)
	calls = append(calls, waiting(t.Context(), t, client, "waits")...)
	calls = append(calls, enqueueing(t.Context(), client, "outside"))
	eventually(t, "it is outside", func() bool { return fila.OutsideTheRoom(client) == 1 })
	check(t, client.Close())
	for _, done := range calls {
		wantKind(t, (<-done).err, fila.ErrClientClosed)
	}
}
