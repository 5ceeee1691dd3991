// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// call is one enqueue under way.
type call struct {
	id  string
	err error
}

func enqueueing(ctx context.Context, client *fila.Client, payload string) <-chan call {
	done := make(chan call, 1)
	go func() {
		id, err := client.Enqueue(ctx, "orders", nil, []byte(payload))
		done <- call{id, err}
	}()
	return done
}

// occupy fills both slots with requests that wait for the gate.
func occupy(t *testing.T, b *broker, client *fila.Client, gate <-chan struct{}) []<-chan call {
	t.Helper()
	b.script("EnqueueBatch", held(gate, b.store))
	first := enqueueing(t.Context(), client, "first")
	b.waitForCalls("EnqueueBatch", 1)
	second := enqueueing(t.Context(), client, "second")
	b.waitForCalls("EnqueueBatch", 2)
	return []<-chan call{first, second}
}

func payloads(request proto.Message) string {
	var found []string
	for _, message := range request.(*filapb.EnqueueBatchRequest).GetMessages() {
		found = append(found, string(message.GetPayload()))
	}
	return strings.Join(found, " ")
}

// waiting starts calls one after the other, so that their order is known.
func waiting(
	ctx context.Context, t *testing.T, client *fila.Client, payload ...string,
) []<-chan call {
	t.Helper()
	var started []<-chan call
	for _, each := range payload {
		before := fila.WaitingEnqueues(client)
		started = append(started, enqueueing(ctx, client, each))
		eventually(t, each+" waits", func() bool {
			return fila.WaitingEnqueues(client) == before+1
		})
	}
	return started
}

func TestLoneCallGoesOutAtOnceAsABatchOfOne(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	id, err := client.Enqueue(t.Context(), "orders", map[string]string{"a": "b"}, []byte("x"))
	check(t, err)
	equal(t, "id", id, "x#1")
	calls := b.seenOf("EnqueueBatch")
	equal(t, "requests", len(calls), 1)
	message := calls[0].request.(*filapb.EnqueueBatchRequest).GetMessages()[0]
	equal(t, "queue", message.GetQueue(), "orders")
	equal(t, "header", message.GetHeaders()["a"], "b")
}

func TestCallsThatFindNoSlotShareTheNextRequest(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	gate := make(chan struct{})
	early := occupy(t, b, client, gate)
	late := waiting(t.Context(), t, client, "a", "b", "c")
	equal(t, "requests while both slots are taken", len(b.seenOf("EnqueueBatch")), 2)
	close(gate)
	for i, done := range append(early, late...) {
		found := <-done
		check(t, found.err)
		want := []string{"first#", "second#", "a#", "b#", "c#"}[i]
		if !strings.HasPrefix(found.id, want) {
			t.Fatalf("call %d got the id %q of somebody else", i, found.id)
		}
	}
	calls := b.seenOf("EnqueueBatch")
	equal(t, "requests", len(calls), 3)
	equal(t, "shared request", payloads(calls[2].request), "a b c")
}

func TestBatchStopsAtAThousandItems(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	gate := make(chan struct{})
	early := occupy(t, b, client, gate)
	var late []<-chan call
	for n := range 1001 {
		late = append(late, enqueueing(t.Context(), client, strconv.Itoa(n)))
	}
	eventually(t, "all wait", func() bool { return fila.WaitingEnqueues(client) == 1001 })
	close(gate)
	for _, done := range append(early, late...) {
		check(t, (<-done).err)
	}
	sizes := map[int]int{}
	for _, seen := range b.seenOf("EnqueueBatch") {
		sizes[len(seen.request.(*filapb.EnqueueBatchRequest).GetMessages())]++
	}
	equal(t, "batches of a thousand", sizes[1000], 1)
	equal(t, "batches of one", sizes[1], 3)
}

func TestBatchStopsAtAMebibyte(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	gate := make(chan struct{})
	early := occupy(t, b, client, gate)
	large := strings.Repeat("x", 400<<10)
	late := waiting(t.Context(), t, client, large, large, large)
	close(gate)
	for _, done := range append(early, late...) {
		check(t, (<-done).err)
	}
	for _, seen := range b.seenOf("EnqueueBatch") {
		if size := proto.Size(seen.request); size > 1<<20 {
			t.Fatalf("a request has %d bytes", size)
		}
	}
	equal(t, "requests", len(b.seenOf("EnqueueBatch")), 4)
}

func TestItemsErrorReachesOnlyItsCaller(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	gate := make(chan struct{})
	early := occupy(t, b, client, gate)
	late := waiting(t.Context(), t, client, "good", "bad")
	b.script("EnqueueBatch", func(_ context.Context, r proto.Message) (proto.Message, error) {
		answer := &filapb.EnqueueBatchResponse{}
		for _, message := range r.(*filapb.EnqueueBatchRequest).GetMessages() {
			result := &filapb.EnqueueResult{MessageId: "stored"}
			if string(message.GetPayload()) == "bad" {
				reason := filapb.ErrorReason_ERROR_REASON_QUEUE_FULL
				result = &filapb.EnqueueResult{
					Error: &filapb.ItemError{Reason: reason, Message: `queue "orders" is full`},
				}
			}
			answer.Results = append(answer.Results, result)
		}
		return answer, nil
	})
	close(gate)
	for _, done := range append(early, late[0]) {
		check(t, (<-done).err)
	}
	failure := wantKind(t, (<-late[1]).err, fila.ErrQueueFull)
	equal(t, "text", failure.Error(), `queue "orders" is full`)
	equal(t, "queue", failure.Queue, "orders")
	equal(t, "reason", failure.Reason, "QUEUE_FULL")
	equal(t, "code", failure.Code, codes.ResourceExhausted)
	equal(t, "retryable", failure.Retryable, true)
}

func TestRequestsErrorReachesEveryCallerWithItsOwnQueue(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	gate := make(chan struct{})
	b.script("AckBatch", held(gate, refuse(codes.NotFound, "gone", "")))
	var done sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		done.Go(func() { errs[i] = client.Ack(t.Context(), "orders", strconv.Itoa(i), "") })
	}
	b.waitForCalls("AckBatch", 2)
	eventually(t, "two wait", func() bool { return fila.WaitingAcks(client) == 2 })
	close(gate)
	done.Wait()
	for i, err := range errs {
		equal(t, "message", wantKind(t, err, fila.ErrMessageNotFound).MessageID, strconv.Itoa(i))
	}
	equal(t, "requests", len(b.seenOf("AckBatch")), 3)
}

func TestCallerThatGivesUpWhileWaitingIsNotSent(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	gate := make(chan struct{})
	early := occupy(t, b, client, gate)
	ctx, cancel := context.WithCancel(t.Context())
	gone := waiting(ctx, t, client, "gone")
	late := waiting(t.Context(), t, client, "stays")
	cancel()
	found := <-gone[0]
	wantKind(t, found.err, fila.ErrCanceled)
	if !errors.Is(found.err, context.Canceled) {
		t.Fatal("the context's error is not in the chain")
	}
	close(gate)
	for _, done := range append(early, late...) {
		check(t, (<-done).err)
	}
	equal(t, "last request", payloads(b.seenOf("EnqueueBatch")[2].request), "stays")
}

func TestCallerThatGivesUpUnderWayLeavesTheOthers(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	first, shared := make(chan struct{}), make(chan struct{})
	early := occupy(t, b, client, first)
	ctx, cancel := context.WithCancel(t.Context())
	gone := waiting(ctx, t, client, "gone")
	late := waiting(t.Context(), t, client, "stays")
	b.script("EnqueueBatch", held(shared, b.store))
	close(first)
	b.waitForCalls("EnqueueBatch", 3)
	cancel()
	wantKind(t, (<-gone[0]).err, fila.ErrCanceled)
	close(shared)
	for _, done := range append(early, late...) {
		check(t, (<-done).err)
	}
}

func TestRequestIsCancelledWhenItsLastCallerGivesUp(t *testing.T) {
	b := startBroker(t)
	b.scriptPipelines(unknown)
	client := newClient(t, b.target)
	ended := make(chan struct{})
	b.script("EnqueueBatch", func(ctx context.Context, _ proto.Message) (proto.Message, error) {
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	gone := enqueueing(ctx, client, "gone")
	b.waitForCalls("EnqueueBatch", 1)
	cancel()
	wantKind(t, (<-gone).err, fila.ErrCanceled)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the request went on")
	}
}

func TestEachCallerHasItsOwnDeadline(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	gate := make(chan struct{})
	early := occupy(t, b, client, gate)
	ctx := newExpiring(t)
	late := waiting(ctx, t, client, "late")
	ctx.expire()
	failure := wantKind(t, (<-late[0]).err, fila.ErrDeadlineExceeded)
	if !strings.Contains(failure.Message, "was not sent") {
		t.Fatalf("the text does not say that nothing was sent: %s", failure.Message)
	}
	close(gate)
	for _, done := range early {
		check(t, (<-done).err)
	}
}

func TestTextThatIsNotUTF8FailsItsCallerAlone(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	_, err := client.Enqueue(t.Context(), "orders", map[string]string{"secret": "\xff"}, nil)
	failure := wantKind(t, err, fila.ErrInvalidArgument)
	equal(t, "text", failure.Message, `headers entry "secret" is not valid UTF-8`)
	err = client.Ack(t.Context(), "orders", "\xff", "")
	equal(t, "text", wantKind(t, err, fila.ErrInvalidArgument).Message,
		"message_id is not valid UTF-8")
	equal(t, "requests", len(b.seenOf("EnqueueBatch"))+len(b.seenOf("AckBatch")), 0)
}
