// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// quick makes retries come soon.
var quick = fila.WithBackoff(fila.Backoff{
	Initial: time.Millisecond, Maximum: 10 * time.Millisecond,
})

// failing is away at the first calls, and then answers like another script.
func failing(times int32, then script) script {
	var count atomic.Int32
	return func(ctx context.Context, request proto.Message) (proto.Message, error) {
		if count.Add(1) <= times {
			return refuse(codes.Unavailable, "away", "")(ctx, request)
		}
		return then(ctx, request)
	}
}

func TestEnqueueSendsEveryOption(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	at := time.UnixMilli(1_700_000_000_123)
	_, err := client.Enqueue(t.Context(), "orders", nil, []byte("x"),
		fila.WithFairnessKey("acme"), fila.WithWeight(3), fila.WithThrottleKeys("a", "b"),
		fila.WithThrottleCost(2), fila.WithDelay(1500*time.Microsecond), fila.WithDeliverAt(at),
		fila.WithTTL(time.Minute), fila.WithIdempotencyKey("once"))
	check(t, err)
	sent := b.seenOf("EnqueueBatch")[0].request.(*filapb.EnqueueBatchRequest).GetMessages()[0]
	equal(t, "fairness key", sent.GetFairnessKey(), "acme")
	equal(t, "weight", sent.GetWeight(), 3)
	equal(t, "throttle keys", strings.Join(sent.GetThrottleKeys(), " "), "a b")
	equal(t, "throttle cost", sent.GetThrottleCost(), 2)
	equal(t, "delay, rounded up", sent.GetDelayMs(), 2)
	equal(t, "deliver at", sent.GetDeliverAt().AsTime().UnixMilli(), at.UnixMilli())
	equal(t, "ttl", sent.GetTtlMs(), 60_000)
	equal(t, "idempotency key", sent.GetIdempotencyKey(), "once")
}

func TestNegativeDurationsAreRefusedBeforeSending(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	_, err := client.Enqueue(t.Context(), "orders", nil, nil, fila.WithDelay(-time.Second))
	failure := wantKind(t, err, fila.ErrInvalidArgument)
	equal(t, "text", failure.Error(), "delay must not be negative, got -1s")
	_, err = client.Enqueue(t.Context(), "orders", nil, nil, fila.WithTTL(-1))
	wantKind(t, err, fila.ErrInvalidArgument)
	_, err = client.Consume(t.Context(), "orders", fila.WithVisibilityTimeout(-1))
	wantKind(t, err, fila.ErrInvalidArgument)
	_, err = client.Receive(t.Context(), "orders", 1, fila.WithWait(-1))
	wantKind(t, err, fila.ErrInvalidArgument)
	err = client.Nack(t.Context(), "orders", "m", "", "", fila.WithRetryAfter(-1))
	wantKind(t, err, fila.ErrInvalidArgument)
	_, err = client.Extend(t.Context(), "orders", "m", "", -1)
	wantKind(t, err, fila.ErrInvalidArgument)
	_, err = client.CreateQueue(t.Context(), "orders", fila.RetryDelay(-1))
	wantKind(t, err, fila.ErrInvalidArgument)
	b.lock.Lock()
	defer b.lock.Unlock()
	equal(t, "calls", len(b.calls), 0)
}

func TestEnqueueWithoutAKeyIsSentOnce(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, quick)
	b.script("EnqueueBatch", refuse(codes.Unavailable, "away", ""))
	_, err := client.Enqueue(t.Context(), "orders", nil, nil)
	wantKind(t, err, fila.ErrUnavailable)
	results, err := client.EnqueueMany(t.Context(), []fila.EnqueueMessage{
		{Queue: "orders", IdempotencyKey: "has one"}, {Queue: "orders"},
	})
	check(t, err)
	wantKind(t, results[0].Err, fila.ErrUnavailable)
	equal(t, "requests", len(b.seenOf("EnqueueBatch")), 2)
}

func TestEnqueueWithAKeyIsSentAgain(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, quick)
	b.script("EnqueueBatch", failing(3, b.store))
	id, err := client.Enqueue(t.Context(), "orders", nil, []byte("x"), fila.WithIdempotencyKey("k"))
	check(t, err)
	equal(t, "id", id, "x#1")
	equal(t, "requests", len(b.seenOf("EnqueueBatch")), 4)
	b.script("EnqueueBatch", failing(2, b.store))
	results, err := client.EnqueueMany(t.Context(), []fila.EnqueueMessage{
		{Queue: "orders", IdempotencyKey: "a"}, {Queue: "orders", IdempotencyKey: "b"},
	})
	check(t, err)
	check(t, results[1].Err)
	equal(t, "requests", len(b.seenOf("EnqueueBatch")), 7)
}

func TestOnlyUnavailableIsTriedAgain(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, quick)
	for _, code := range []codes.Code{codes.ResourceExhausted, codes.Internal, codes.Canceled} {
		b.script("EnqueueBatch", refuse(code, "", ""))
		before := len(b.seenOf("EnqueueBatch"))
		_, err := client.Enqueue(t.Context(), "q", nil, nil, fila.WithIdempotencyKey("k"))
		equal(t, "failed", err != nil, true)
		equal(t, code.String(), len(b.seenOf("EnqueueBatch")), before+1)
	}
}

func TestRetriesEndBeforeTheDeadlineWithTheReason(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target,
		fila.WithTimeout(300*time.Millisecond),
		fila.WithBackoff(fila.Backoff{Initial: 40 * time.Millisecond, Maximum: time.Hour}))
	b.script("GetConfig", refuse(codes.Unavailable, "away", ""))
	_, err := client.GetConfig(t.Context(), "k")
	// Under load the last attempt itself may be what the deadline cuts.
	if !errors.Is(err, fila.ErrUnavailable) && !errors.Is(err, fila.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
}

// pausing starts a call that pauses for long before its second attempt.
func pausing(ctx context.Context, t *testing.T, b *broker) (*fila.Client, <-chan error) {
	t.Helper()
	client := newClient(t, b.target, fila.WithTimeout(24*time.Hour),
		fila.WithBackoff(fila.Backoff{Initial: time.Hour, Maximum: time.Hour}))
	b.script("GetConfig", refuse(codes.Unavailable, "away", ""))
	done := make(chan error, 1)
	go func() {
		_, err := client.GetConfig(ctx, "k")
		done <- err
	}()
	b.waitForCalls("GetConfig", 1)
	return client, done
}

func TestPauseBeforeARetryEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, done := pausing(ctx, t, startBroker(t))
	cancel()
	wantKind(t, <-done, fila.ErrCanceled)
}

func TestPauseBeforeARetryEndsWithTheClient(t *testing.T) {
	client, done := pausing(t.Context(), t, startBroker(t))
	check(t, client.Close())
	wantKind(t, <-done, fila.ErrClientClosed)
}

func TestReadsAndConfigAreSentAgainAndChangesAreNot(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target, quick)
	b.script("GetStats", failing(2, replyWith(&filapb.GetStatsResponse{})))
	b.script("SetConfig", failing(2, replyWith(&filapb.SetConfigResponse{})))
	b.script("Receive", failing(2, replyWith(&filapb.ReceiveResponse{})))
	b.script("AckBatch", failing(2, settleAll))
	b.script("Purge", failing(2, replyWith(&filapb.PurgeResponse{})))
	_, err := client.Stats(t.Context(), "orders", 0)
	check(t, err)
	check(t, client.SetConfig(t.Context(), "k", "v"))
	_, err = client.Receive(t.Context(), "orders", 1)
	wantKind(t, err, fila.ErrUnavailable)
	wantKind(t, client.Ack(t.Context(), "orders", "m", ""), fila.ErrUnavailable)
	_, err = client.Purge(t.Context(), "orders", "")
	wantKind(t, err, fila.ErrUnavailable)
	for method, count := range map[string]int{
		"GetStats": 3, "SetConfig": 3, "Receive": 1, "AckBatch": 1, "Purge": 1,
	} {
		equal(t, method, len(b.seenOf(method)), count)
	}
}

func many(count int, payload string) []fila.EnqueueMessage {
	messages := make([]fila.EnqueueMessage, count)
	for n := range messages {
		messages[n] = fila.EnqueueMessage{Queue: fmt.Sprintf("q%d", n), Payload: []byte(payload)}
	}
	return messages
}

func TestEnqueueManySplitsByCountAndKeepsOrder(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	results, err := client.EnqueueMany(t.Context(), many(2500, ""))
	check(t, err)
	for n, result := range results {
		check(t, result.Err)
		equal(t, "id", result.MessageID, fmt.Sprintf("#%d", n+1))
	}
	n := 0
	for i, call := range b.seenOf("EnqueueBatch") {
		messages := call.request.(*filapb.EnqueueBatchRequest).GetMessages()
		equal(t, "size", len(messages), []int{1000, 1000, 500}[i])
		for _, message := range messages {
			equal(t, "order", message.GetQueue(), fmt.Sprintf("q%d", n))
			n++
		}
	}
}

func TestEnqueueManySplitsByBytesAndALargeMessageTravelsAlone(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	messages := many(5, strings.Repeat("x", 500<<10))
	messages[2].Payload = make([]byte, 2<<20)
	_, err := client.EnqueueMany(t.Context(), messages)
	check(t, err)
	for i, call := range b.seenOf("EnqueueBatch") {
		count := len(call.request.(*filapb.EnqueueBatchRequest).GetMessages())
		equal(t, "size", count, []int{2, 1, 2}[i])
	}
}

func TestEnqueueManySendsNothingAfterAFailedRequest(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	var count atomic.Int32
	b.script("EnqueueBatch", func(ctx context.Context, r proto.Message) (proto.Message, error) {
		if count.Add(1) == 2 {
			return refuse(codes.ResourceExhausted, "too busy", "OVERLOADED")(ctx, r)
		}
		return b.store(ctx, r)
	})
	results, err := client.EnqueueMany(t.Context(), many(3500, ""))
	check(t, err)
	equal(t, "results", len(results), 3500)
	equal(t, "requests", len(b.seenOf("EnqueueBatch")), 2)
	check(t, results[999].Err)
	failed := wantKind(t, results[1000].Err, fila.ErrOverloaded)
	equal(t, "text", failed.Error(), "too busy")
	equal(t, "queue", failed.Queue, "q1000")
	unsent := wantKind(t, results[3499].Err, fila.ErrOverloaded)
	equal(t, "text", unsent.Error(),
		"not sent, because an earlier request of this call failed: too busy")
	equal(t, "queue", unsent.Queue, "q3499")
}

func TestEnqueueManyReportsEachMessage(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	reason := filapb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND
	b.script("EnqueueBatch", replyWith(&filapb.EnqueueBatchResponse{
		Results: []*filapb.EnqueueResult{
			{MessageId: "m-1", Duplicate: true},
			{Error: &filapb.ItemError{Reason: reason, Message: "no such queue"}},
		},
	}))
	results, err := client.EnqueueMany(t.Context(), many(2, ""))
	check(t, err)
	equal(t, "first", results[0], fila.EnqueueResult{MessageID: "m-1", IsDuplicate: true})
	equal(t, "queue", wantKind(t, results[1].Err, fila.ErrQueueNotFound).Queue, "q1")
	equal(t, "id", results[1].MessageID, "")
}

func TestEnqueueManyNamesTheMessageThatCannotBeEncoded(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	messages := many(3, "")
	messages[1].FairnessKey = "\xff"
	_, err := client.EnqueueMany(t.Context(), messages)
	failure := wantKind(t, err, fila.ErrInvalidArgument)
	equal(t, "text", failure.Error(), "message 1: fairness_key is not valid UTF-8")
	equal(t, "requests", len(b.seenOf("EnqueueBatch")), 0)
	results, err := client.EnqueueMany(t.Context(), nil)
	check(t, err)
	equal(t, "results for nothing", len(results), 0)
}

func TestSettlingSendsWhatItWasTold(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	check(t, client.Ack(t.Context(), "orders", "m-1", "token"))
	check(t, client.Nack(t.Context(), "orders", "m-2", "token", "bad luck",
		fila.WithRetryAfter(0), fila.WithThrottledKey("mail")))
	ack := b.seenOf("AckBatch")[0].request.(*filapb.AckBatchRequest).GetAcks()[0]
	equal(t, "ack", ack.GetQueue()+ack.GetMessageId()+ack.GetLeaseToken(), "ordersm-1token")
	nack := b.seenOf("NackBatch")[0].request.(*filapb.NackBatchRequest).GetNacks()[0]
	equal(t, "nack", nack.GetMessageId()+nack.GetError()+nack.GetThrottleKey(), "m-2bad luckmail")
	equal(t, "a retry after 0 is sent", nack.RetryAfterMs != nil, true)
	check(t, client.Nack(t.Context(), "orders", "m-3", "", ""))
	nack = b.seenOf("NackBatch")[1].request.(*filapb.NackBatchRequest).GetNacks()[0]
	equal(t, "no retry after", nack.RetryAfterMs == nil, true)
}

func TestManyAreSettledInOneRequest(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	b.script("Receive", replyWith(&filapb.ReceiveResponse{
		Messages: frame("m-1", "m-2", "m-3").GetMessages(),
	}))
	messages, err := client.Receive(t.Context(), "orders", 3)
	check(t, err)
	reason := filapb.ErrorReason_ERROR_REASON_LEASE_EXPIRED
	results := itemResults(3)
	results[1].Error = &filapb.ItemError{Reason: reason, Message: "too late"}
	b.script("AckBatch", replyWith(&filapb.AckBatchResponse{Results: results}))
	errs, err := client.AckMany(t.Context(), messages)
	check(t, err)
	check(t, errors.Join(errs[0], errs[2]))
	equal(t, "message", wantKind(t, errs[1], fila.ErrLeaseExpired).MessageID, "m-2")
	errs, err = client.NackMany(t.Context(), messages[:2], "why")
	check(t, errors.Join(err, errs[0], errs[1]))
	nacks := b.seenOf("NackBatch")[0].request.(*filapb.NackBatchRequest).GetNacks()
	equal(t, "nacks", len(nacks), 2)
	equal(t, "token", nacks[1].GetLeaseToken(), "token-of-m-2")
	equal(t, "error", nacks[1].GetError(), "why")
}
