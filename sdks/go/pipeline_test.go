// SPDX-License-Identifier: AGPL-3.0-only

package fila_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fila "github.com/faiscadev/fila/sdks/go"
	"github.com/faiscadev/fila/sdks/go/internal/filapb"
)

// takenFrom is the next request of a pipeline.
func takenFrom(stream grpc.ServerStream) (*filapb.PipelineRequest, error) {
	request := &filapb.PipelineRequest{}
	return request, stream.RecvMsg(request)
}

// requests are those of a pipeline until it ends.
func requests(stream grpc.ServerStream) iter.Seq[*filapb.PipelineRequest] {
	return func(yield func(*filapb.PipelineRequest) bool) {
		for {
			request, err := takenFrom(stream)
			if err != nil || !yield(request) {
				return
			}
		}
	}
}

func firstPayload(request *filapb.PipelineRequest) string {
	return string(request.GetEnqueue().GetMessages()[0].GetPayload())
}

// stored is the answer to a request of one message, whose payload is its id.
func stored(request *filapb.PipelineRequest) *filapb.PipelineResponse {
	result := &filapb.EnqueueResult{MessageId: firstPayload(request)}
	return piped(&filapb.EnqueueBatchResponse{Results: []*filapb.EnqueueResult{result}})
}

// echo answers requests until the stream ends.
func echo(stream grpc.ServerStream) error {
	for request := range requests(stream) {
		if err := stream.SendMsg(stored(request)); err != nil {
			return err
		}
	}
	return nil
}

func enqueue(t *testing.T, client *fila.Client, payload string) {
	t.Helper()
	id, err := client.Enqueue(t.Context(), "orders", nil, []byte(payload))
	check(t, err)
	if !strings.HasPrefix(id, payload) {
		t.Fatalf("%q got the answer %q of somebody else", payload, id)
	}
}

func TestBatchesShareTwoStreams(t *testing.T) {
	b := startBroker(t)
	b.script("ExtendLease", replyWith(&filapb.ExtendLeaseResponse{
		Results: []*filapb.ExtendLeaseResult{{}},
	}))
	b.script("SettleGrants", replyWith(&filapb.SettleGrantsResponse{
		Results: []*filapb.GrantResult{{Messages: 7}},
	}))
	client := newClient(t, b.target, fila.WithAPIKey("key"))
	for range 3 {
		enqueue(t, client, "x")
		check(t, client.Ack(t.Context(), "orders", "m", "t"))
		check(t, client.Nack(t.Context(), "orders", "m", "t", "why"))
		_, err := client.Extend(t.Context(), "orders", "m", "t", time.Minute)
		check(t, err)
		count, err := client.AckGrant(t.Context(), "orders", "t")
		check(t, err)
		equal(t, "settled", count, 7)
	}
	streams := b.seenOf("Pipeline")
	equal(t, "streams", len(streams), 2)
	for _, each := range streams {
		equal(t, "key", strings.Join(each.metadata.Get("authorization"), ","), "Bearer key")
		equal(t, "deadline", each.left, 0)
	}
	methods := []string{"EnqueueBatch", "AckBatch", "NackBatch", "ExtendLease", "SettleGrants"}
	for _, method := range methods {
		calls := b.seenOf(method)
		equal(t, method, len(calls), 3)
		equal(t, method+" is piped", calls[0].isPiped, true)
	}
}

func TestClientWithoutBatchesOpensNoStream(t *testing.T) {
	b := startBroker(t)
	b.script("GetStats", replyWith(&filapb.GetStatsResponse{}))
	client := newClient(t, b.target)
	_, err := client.Stats(t.Context(), "orders", 0)
	check(t, err)
	check(t, client.Close())
	equal(t, "streams", len(b.seenOf("Pipeline")), 0)
}

func TestTracesAndLargeRequestsTravelAlone(t *testing.T) {
	b := startBroker(t)
	client := newClient(t, b.target)
	_, err := client.Enqueue(traced(t), "orders", nil, nil)
	check(t, err)
	enqueue(t, client, strings.Repeat("x", 1<<20))
	for _, call := range b.seenOf("EnqueueBatch") {
		equal(t, "piped", call.isPiped, false)
	}
	equal(t, "streams", len(b.seenOf("Pipeline")), 0)
}

func TestAnErrorIsThatOfTheCallAndTheStreamGoesOn(t *testing.T) {
	const text = `no room for "secret-key"`
	for name, number := range filapb.ErrorReason_value {
		reason := strings.TrimPrefix(name, "ERROR_REASON_")
		if reason == "UNSPECIFIED" {
			continue
		}
		refused := &filapb.ItemError{Reason: filapb.ErrorReason(number), Message: text}
		b := startBroker(t)
		b.script("AckBatch", replyWith(refused))
		client := newClient(t, b.target, fila.WithAPIKey("secret-key"))
		err := client.Ack(t.Context(), "orders", "m", "")
		var got *fila.Error
		if !errors.As(err, &got) {
			t.Fatal(err)
		}

		b.scriptPipelines(unknown)
		b.script("AckBatch", refuse(got.Code, text, reason))
		unary := newClient(t, b.target, fila.WithAPIKey("secret-key"))
		err = unary.Ack(t.Context(), "orders", "m", "")
		want := wantKind(t, err, got.Kind)
		equal(t, "text", got.Message, want.Message)
		equal(t, "code", got.Code, want.Code)
		equal(t, "reason", got.Reason, want.Reason)
		equal(t, "retryable", got.Retryable, want.Retryable)
		equal(t, "message", got.MessageID, "m")

		b.script("AckBatch", settleAll)
		check(t, client.Ack(t.Context(), "orders", "m", ""))
		equal(t, "streams", len(b.seenOf("Pipeline")), 2) // The other is the second client's.
	}
}

func TestAnErrorIsThatOfEveryItem(t *testing.T) {
	b := startBroker(t)
	b.script("EnqueueBatch", replyWith(&filapb.ItemError{
		Reason: filapb.ErrorReason_ERROR_REASON_OVERLOADED, Message: "too much",
	}))
	client := newClient(t, b.target)
	results, err := client.EnqueueMany(t.Context(), []fila.EnqueueMessage{
		{Queue: "a"}, {Queue: "b"},
	})
	check(t, err)
	equal(t, "first", wantKind(t, results[0].Err, fila.ErrOverloaded).Queue, "a")
	equal(t, "second", wantKind(t, results[1].Err, fila.ErrOverloaded).Queue, "b")
}

func TestShuttingDownAsAnErrorIsRetried(t *testing.T) {
	b := startBroker(t)
	var count atomic.Int32
	b.script("EnqueueBatch", func(ctx context.Context, r proto.Message) (proto.Message, error) {
		if count.Add(1) == 1 {
			return &filapb.ItemError{Reason: filapb.ErrorReason_ERROR_REASON_SHUTTING_DOWN}, nil
		}
		return b.store(ctx, r)
	})
	client := newClient(t, b.target)
	_, err := client.Enqueue(t.Context(), "orders", nil, nil, fila.WithIdempotencyKey("k"))
	check(t, err)
	equal(t, "requests", count.Load(), 2)
}

func TestAStreamThatBreaksFailsWhatWasSentOnIt(t *testing.T) {
	b := startBroker(t)
	b.scriptPipelines(func(stream grpc.ServerStream) error {
		for answered := range 2 {
			request, err := takenFrom(stream)
			if err != nil {
				return err
			}
			if answered == 0 {
				check(t, stream.SendMsg(stored(request)))
			}
		}
		b.scriptPipelines(echo)
		stream.SetTrailer(metadata.Pairs("fila-reason", "SHUTTING_DOWN"))
		return status.Error(codes.Unavailable, "going")
	})
	client := newClient(t, b.target)
	enqueue(t, client, "first")
	_, err := client.Enqueue(t.Context(), "orders", nil, []byte("second"))
	failure := wantKind(t, err, fila.ErrShuttingDown)
	equal(t, "text", failure.Message, "going")
	equal(t, "queue", failure.Queue, "orders")
	enqueue(t, client, "third")
	equal(t, "streams", len(b.seenOf("Pipeline")), 2)
}

func TestWhatMayBeRepeatedIsRepeatedOnTheNextStream(t *testing.T) {
	b := startBroker(t)
	b.scriptPipelines(func(stream grpc.ServerStream) error {
		if _, err := takenFrom(stream); err != nil {
			return err
		}
		b.scriptPipelines(echo)
		return nil // An end without a status is no answer either.
	})
	client := newClient(t, b.target)
	_, err := client.Enqueue(t.Context(), "orders", nil, []byte("x"), fila.WithIdempotencyKey("k"))
	check(t, err)
	equal(t, "streams", len(b.seenOf("Pipeline")), 2)
}

func TestTheEndOfAnIdleStreamMeetsNobody(t *testing.T) {
	b := startBroker(t)
	over := make(chan struct{})
	b.scriptPipelines(func(stream grpc.ServerStream) error {
		b.scriptPipelines(echo)
		request, err := takenFrom(stream)
		check(t, err)
		check(t, stream.SendMsg(stored(request)))
		close(over)
		return status.Error(codes.Unavailable, "going")
	})
	client := newClient(t, b.target)
	enqueue(t, client, "first")
	<-over
	// A call that is answered has seen what the broker sent before, up to the last goroutine.
	b.script("Receive", replyWith(&filapb.ReceiveResponse{}))
	for range 2 {
		_, err := client.Receive(t.Context(), "orders", 1)
		check(t, err)
	}
	enqueue(t, client, "second")
	equal(t, "streams", len(b.seenOf("Pipeline")), 2)
}

func TestABrokerWithoutPipelinesIsAskedOnce(t *testing.T) {
	b := startBroker(t)
	b.scriptPipelines(unknown)
	client := newClient(t, b.target)
	var calls []<-chan call
	for n := range 20 {
		calls = append(calls, enqueueing(t.Context(), client, strconv.Itoa(n)))
	}
	for _, each := range calls {
		check(t, (<-each).err)
	}
	check(t, client.Ack(t.Context(), "orders", "m", "t"))
	equal(t, "streams", len(b.seenOf("Pipeline")), 1)
	equal(t, "piped", b.seenOf("EnqueueBatch")[0].isPiped, false)
	equal(t, "piped", b.seenOf("AckBatch")[0].isPiped, false)
}

func TestAnswerThatComesTooLateIsDropped(t *testing.T) {
	b := startBroker(t)
	taken, gate := make(chan struct{}), make(chan struct{})
	b.scriptPipelines(func(stream grpc.ServerStream) error {
		request, err := takenFrom(stream)
		check(t, err)
		close(taken)
		<-gate
		check(t, stream.SendMsg(stored(request)))
		return echo(stream)
	})
	client := newClient(t, b.target)
	ctx := newExpiring(t)
	late := enqueueing(ctx, client, "late")
	<-taken
	ctx.expire()
	wantKind(t, (<-late).err, fila.ErrDeadlineExceeded)
	behind := enqueueing(t.Context(), client, "behind")
	close(gate)
	found := <-behind
	check(t, found.err)
	equal(t, "id", found.id, "behind")
	equal(t, "streams", len(b.seenOf("Pipeline")), 1)
}

func TestStuckStreamIsLeftBehind(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	gate, ended := make(chan struct{}), make(chan struct{})
	b.scriptPipelines(func(stream grpc.ServerStream) error {
		b.scriptPipelines(echo)
		request, err := takenFrom(stream)
		check(t, err)
		<-gate
		check(t, stream.SendMsg(stored(request)))
		<-stream.Context().Done()
		close(ended)
		return nil
	})
	client := newClient(t, b.target)
	fila.SetStallTime(client, 50*time.Millisecond)
	patient := enqueueing(t.Context(), client, "patient")
	b.waitForCalls("Pipeline", 1)
	// Time enough to begin, however busy the machine.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := client.EnqueueMany(ctx, []fila.EnqueueMessage{{Queue: "orders"}})
	check(t, err)
	enqueue(t, client, "next")
	equal(t, "streams", len(b.seenOf("Pipeline")), 2)
	close(gate)
	found := <-patient
	check(t, found.err)
	equal(t, "id", found.id, "patient")
	<-ended
}

func TestWhatWasNotWrittenIsNotSentLater(t *testing.T) {
	b := startBroker(t)
	gate := make(chan struct{})
	var seen atomic.Int32
	b.scriptPipelines(func(stream grpc.ServerStream) error {
		<-gate
		for request := range requests(stream) {
			seen.Add(1)
			check(t, stream.SendMsg(stored(request)))
		}
		return nil
	})
	client := newClient(t, b.target)
	// More than flow control lets through while nobody reads.
	large := strings.Repeat("x", 1<<19)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var done sync.WaitGroup
	for range 30 {
		done.Go(func() {
			results, err := client.EnqueueMany(ctx, []fila.EnqueueMessage{
				{Queue: "orders", Payload: []byte(large)},
			})
			check(t, err)
			wantKind(t, results[0].Err, fila.ErrDeadlineExceeded)
		})
	}
	done.Wait()
	close(gate)
	enqueue(t, client, "x")
	if count := seen.Load(); count > 16 {
		t.Fatalf("%d requests were sent", count)
	}
}

func TestAnswersToNothingEndTheStream(t *testing.T) {
	acks := piped(&filapb.AckBatchResponse{})
	for name, answers := range map[string][]*filapb.PipelineResponse{
		"nothing":      {{}},
		"another call": {acks},
	} {
		t.Run(name, func(t *testing.T) {
			b := startBroker(t)
			b.scriptPipelines(func(stream grpc.ServerStream) error {
				b.scriptPipelines(echo)
				_, err := takenFrom(stream)
				check(t, err)
				for _, each := range answers {
					check(t, stream.SendMsg(each))
				}
				return idle(stream)
			})
			client := newClient(t, b.target)
			_, err := client.Enqueue(t.Context(), "orders", nil, nil)
			wantKind(t, err, fila.ErrInternal)
			enqueue(t, client, "next")
			equal(t, "streams", len(b.seenOf("Pipeline")), 2)
		})
	}
}

func TestCloseHalfClosesAndLeavesNothingBehind(t *testing.T) {
	b := startBroker(t)
	enqueue(t, newClient(t, b.target), "warm")
	before := runtime.NumGoroutine()
	ended := make(chan error, 1)
	b.scriptPipelines(func(stream grpc.ServerStream) error {
		request, err := takenFrom(stream)
		check(t, err)
		check(t, stream.SendMsg(stored(request)))
		_, err = takenFrom(stream)
		ended <- err
		return nil
	})
	client := newClient(t, b.target)
	enqueue(t, client, "x")
	check(t, client.Close())
	equal(t, "end", (<-ended).Error(), "EOF")
	eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

func TestCloseEndsCallsOfABrokerThatDoesNotAnswer(t *testing.T) {
	b := startBroker(t)
	b.scriptPipelines(idle)
	client := newClient(t, b.target, fila.WithCloseTimeout(0))
	first := enqueueing(t.Context(), client, "x")
	b.waitForCalls("Pipeline", 1)
	begun := time.Now()
	check(t, client.Close())
	wantKind(t, (<-first).err, fila.ErrClientClosed)
	if spent := time.Since(begun); spent > patience/2 {
		t.Fatalf("it took %v", spent)
	}
}

func TestManyCallersGetTheirOwnAnswers(t *testing.T) {
	b := startBroker(t)
	var underWay, most atomic.Int32
	b.script("EnqueueBatch", func(ctx context.Context, r proto.Message) (proto.Message, error) {
		now := underWay.Add(1)
		defer underWay.Add(-1)
		for old := most.Load(); now > old; old = most.Load() {
			if most.CompareAndSwap(old, now) {
				break
			}
		}
		return b.store(ctx, r)
	})
	client := newClient(t, b.target)
	var done sync.WaitGroup
	for n := range 60 {
		done.Go(func() {
			for i := range 20 {
				payload := fmt.Sprintf("%d-%d", n, i)
				results, err := client.EnqueueMany(t.Context(), []fila.EnqueueMessage{
					{Queue: "orders", Payload: []byte(payload)},
				})
				check(t, err)
				check(t, results[0].Err)
				if !strings.HasPrefix(results[0].MessageID, payload+"#") {
					t.Errorf("%s got the answer %s", payload, results[0].MessageID)
				}
				enqueue(t, client, payload)
			}
		})
	}
	done.Wait()
	equal(t, "streams", len(b.seenOf("Pipeline")), 1)
	if most.Load() > 16 {
		t.Fatalf("%d requests were under way", most.Load())
	}
}
